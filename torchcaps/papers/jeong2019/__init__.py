"""Ladder Capsule Network (Jeong, Lee, Kim 2019)."""
