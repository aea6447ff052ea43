import pytest

from tests.browser import browser_is_there, headless


@pytest.fixture(scope="session")
def browser():
    if not browser_is_there():
        pytest.skip("no browser to look at pages with: install Debian's packages chromium and chromium-driver")
    with headless() as started:
        yield started
