"""Open pages in a headless Chromium (Debian packages chromium and chromium-driver)."""

import json
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

PROGRAMS = ("chromium", "chromedriver")


@dataclass(frozen=True)
class Browser:
    """A browser with one page open."""

    driver: webdriver.Chrome

    def open(self, page: Path | str, width: int = 1000, height: int = 800, scheme: str = "light") -> None:
        """Open a file or an address with a viewport in CSS pixels and a colour scheme."""
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        prefers = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [prefers]})
        self.driver.get(page.as_uri() if isinstance(page, Path) else page)

    def evaluate(self, script: str):
        """Return the value of a JavaScript expression."""
        return self.driver.execute_script(f"return {script}")

    def pop_requested_urls(self) -> set[str]:
        """Return addresses that pages have requested since the last call."""
        events = (json.loads(line["message"])["message"] for line in self.driver.get_log("performance"))
        requests = (event for event in events if event["method"] == "Network.requestWillBeSent")
        return {request["params"]["request"]["url"] for request in requests}

    def get_console_messages(self) -> list[str]:
        """Return messages of the console since the last call."""
        return [line["message"] for line in self.driver.get_log("browser")]


def is_browser_installed() -> bool:
    """True if Chromium and its driver are installed."""
    return all(map(shutil.which, PROGRAMS))


@contextmanager
def open_headless_browser():
    """Start a browser and quit it at the end of the block."""
    options = webdriver.ChromeOptions()
    options.binary_location, driver = map(shutil.which, PROGRAMS)
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield Browser(chrome)
    finally:
        chrome.quit()
