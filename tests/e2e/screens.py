"""Pictures of what a person sees, taken while slices run on real parts: `make screens`."""

import signal
import sys
import tempfile
import time
from pathlib import Path

from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By

from tests.browser import browser_is_there, headless
from tests.conftest import PROJECT
from tests.e2e.scenario import NAME, started, teller
from tests.e2e.services import postgres_programs
from tests.processes import until

DAG, HOURS = f"{NAME}__slice", 5
WIDTH, HEIGHT = 1280, 620


class Photographer:
    """A browser that is logged in to Airflow, and where its pictures go."""

    def __init__(self, browser, story, folder):
        self.browser, self.story, self.folder = browser, story, folder
        self.airflow = f"http://127.0.0.1:{story.airflow.port}"

    def log_in(self):
        """As the admin, by the form."""
        driver = self.browser.driver
        self.browser.open(self.airflow)
        until(lambda: driver.find_elements(By.NAME, "password"), 60, "no login")
        driver.find_element(By.NAME, "username").send_keys("admin")
        driver.find_element(By.NAME, "password").send_keys(self.story.airflow.secrets["AIRFLOW_ADMIN_PASSWORD"])
        driver.find_element(By.CSS_SELECTOR, "button[type=submit]").click()
        until(lambda: driver.current_url.rstrip("/") == self.airflow, 60, "not logged in")

    def take(self, name, page, *shown):
        """A page, once it shows these texts and stands still."""
        self.browser.open(page, WIDTH, HEIGHT)

        def is_drawn():
            text = self.browser.ask("document.body.innerText")
            return all(one in text for one in shown)

        until(is_drawn, 60, f"{name}: {shown} did not show")
        if by_hand := self.browser.driver.find_elements(By.CSS_SELECTOR, "[data-panel-resize-handle-id]"):
            self._widen(by_hand[0])
        time.sleep(3)
        self.browser.driver.save_screenshot(str(self.folder / f"{name}.png"))
        self.story.say(f"{name}.png: {', '.join(shown)}")

    def _widen(self, handle):
        """The grid's side of Airflow's page, so that all runs are in sight."""
        drag = ActionChains(self.browser.driver).move_to_element_with_offset(handle, 0, -200).click_and_hold()
        for _ in range(10):
            drag = drag.move_by_offset(12, 0)
        drag.release().perform()


def take_all(story, browser, folder):
    """Slices that are committed, one that fails and is waived, one that waits; and what the checks and Spark show."""
    one = Photographer(browser, story, folder)
    one.log_in()
    for hour in range(2):
        story.slice_runs(hour)
    stopped = story.quality_stops_a_slice(2)
    one.take("airflow-failed", f"{one.airflow}/dags/{DAG}/runs/{stopped}", DAG, "Failed")
    story.next_slice_waits(3)
    story.waiver_lets_through(2, stopped)
    story.ended(3)
    until(lambda: story.state(HOURS - 1, "wait") == "deferred", 120, "no slice waits")
    one.take("airflow-waiting", f"{one.airflow}/dags/{DAG}", DAG, "1 of 1")
    (asset,) = story.airflow.get(f"assets?name_pattern={NAME}__slices")["assets"]
    one.take("airflow-asset", f"{one.airflow}/assets/{asset['id']}", f"{NAME}__reprocess", "Asset Events")
    one.take("data-docs", next((story.lake / NAME / "gx").rglob("index.html")), "Validation Results")
    one.take("spark-history", story.history, f"{NAME} 2024-01-01")


if __name__ == "__main__":
    if postgres_programs() is None or not browser_is_there():
        sys.exit("screens: install Debian's packages postgresql, chromium and chromium-driver, then run it again")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all that was started is ended
    home = Path(tempfile.mkdtemp(prefix="tidemark-screens-"))
    with started(home, HOURS, 0, teller()) as told, headless() as chromium:
        take_all(told, chromium, PROJECT / "docs" / "images")
