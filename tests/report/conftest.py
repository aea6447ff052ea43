import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

NEEDED = ("chromium", "chromedriver")


@dataclass(frozen=True)
class Browser:
    """A headless Chromium: a page as a person would see it."""

    driver: webdriver.Chrome

    def open(self, page: Path, width: int = 1000, scheme: str = "light") -> None:
        screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        prefers = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [prefers]})
        self.driver.get(page.as_uri())

    def ask(self, script: str):
        return self.driver.execute_script(f"return {script}")

    def asked_for(self) -> set[str]:
        """What the pages opened since the last call have loaded."""
        told = (json.loads(line["message"])["message"] for line in self.driver.get_log("performance"))
        return {one["params"]["request"]["url"] for one in told if one["method"] == "Network.requestWillBeSent"}

    def complaints(self) -> list[str]:
        return [line["message"] for line in self.driver.get_log("browser")]


@pytest.fixture(scope="session")
def browser():
    programs = [shutil.which(name) for name in NEEDED]
    if None in programs:
        pytest.skip("no browser to look at pages with: install Debian's packages chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location, driver = programs
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    yield Browser(started)
    started.quit()
