"""Fixtures of report tests."""

import pytest

from tests.browser import is_browser_installed, open_headless_browser


@pytest.fixture(scope="session")
def browser():
    if not is_browser_installed():
        pytest.skip("no browser to open pages: install Debian's packages chromium and chromium-driver")
    with open_headless_browser() as browser:
        yield browser
