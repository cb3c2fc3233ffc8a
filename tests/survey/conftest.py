import pytest
from survey_tree import FILES, lay_out


@pytest.fixture
def site(tmp_path):
    return lay_out(tmp_path / "venv/lib/python3.11/site-packages", FILES)
