"""Integer arithmetic for cutting a problem into tiles."""


def ceil_div(n: int, size: int) -> int:
    """Count the tiles of `size` that cover n."""
    return -(-n // size)


def next_power_of_2(n: int) -> int:
    """Find the smallest power of two that is not less than n."""
    return 1 << (n - 1).bit_length()
