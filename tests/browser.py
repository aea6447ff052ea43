"""A headless Chromium, of Debian's packages chromium and chromium-driver."""

import json
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

NEEDED = ("chromium", "chromedriver")


@dataclass(frozen=True)
class Browser:
    """A page as a person would see it."""

    driver: webdriver.Chrome

    def open(self, page: Path | str, width: int = 1000, height: int = 800, scheme: str = "light") -> None:
        """A file, or an address."""
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        prefers = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [prefers]})
        self.driver.get(page.as_uri() if isinstance(page, Path) else page)

    def ask(self, script: str):
        return self.driver.execute_script(f"return {script}")

    def asked_for(self) -> set[str]:
        """What the pages opened since the last call have loaded."""
        told = (json.loads(line["message"])["message"] for line in self.driver.get_log("performance"))
        return {one["params"]["request"]["url"] for one in told if one["method"] == "Network.requestWillBeSent"}

    def complaints(self) -> list[str]:
        return [line["message"] for line in self.driver.get_log("browser")]


def browser_is_there() -> bool:
    """Whether both programs are installed."""
    return all(map(shutil.which, NEEDED))


@contextmanager
def headless():
    """A browser, which ends with the block."""
    options = webdriver.ChromeOptions()
    options.binary_location, driver = map(shutil.which, NEEDED)
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield Browser(started)
    finally:
        started.quit()
