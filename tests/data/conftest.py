import pytest


@pytest.fixture
def no_files_at_hand(tmp_path, monkeypatch):
    """An empty cache and no folder of data; for a whole file by `pytestmark`."""
    monkeypatch.setenv("TORCHCAPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TORCHCAPS_DATA", raising=False)
