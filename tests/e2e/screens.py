"""Take screenshots of Airflow, Data Docs and Spark while slices run on all services (`make screens`)."""

import signal
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By

from tests.browser import is_browser_installed, open_headless_browser
from tests.conftest import PROJECT
from tests.dags.slice_lake import write_year
from tests.e2e.scenario import NAME, create_step_printer, start_scenario
from tests.e2e.services import find_postgres_programs
from tests.processes import wait_for

DAG, HOURS = f"{NAME}__slice", 5
WIDTH, HEIGHT, PHONE = 1280, 620, 390
FRAME = "document.querySelector('iframe')?.contentDocument"


class Photographer:
    """Takes screenshots of a scenario's pages into a folder."""

    def __init__(self, browser, scenario, folder):
        self.browser, self.scenario, self.folder = browser, scenario, folder
        self.airflow = f"http://127.0.0.1:{scenario.airflow.port}"

    def log_in(self):
        """Log in to Airflow as the admin."""
        driver = self.browser.driver
        self.browser.open(self.airflow)
        wait_for(lambda: driver.find_elements(By.NAME, "password"), 60, "no login")
        driver.find_element(By.NAME, "username").send_keys("admin")
        driver.find_element(By.NAME, "password").send_keys(self.scenario.airflow.secrets["AIRFLOW_ADMIN_PASSWORD"])
        driver.find_element(By.CSS_SELECTOR, "button[type=submit]").click()
        wait_for(lambda: driver.current_url.rstrip("/") == self.airflow, 60, "not logged in")

    def take(self, name, page, *texts, width=WIDTH, height=HEIGHT, scheme="light", in_frame=(), widens_grid=True):
        """Take a page once it and its frame show some texts, and its animations have ended."""
        self.browser.open(page, width, height, scheme)

        def is_drawn():
            page_text = self.browser.evaluate("document.body.innerText")
            frame_text = self.browser.evaluate(f"{FRAME}?.body?.innerText")
            return all(text in page_text for text in texts) and all(text in (frame_text or "") for text in in_frame)

        wait_for(is_drawn, 60, f"{name}: {texts} did not show")
        handles = self.browser.driver.find_elements(By.CSS_SELECTOR, "[data-panel-resize-handle-id]")
        if widens_grid and handles:
            self._widen(handles[0])
        time.sleep(3)
        self.browser.driver.save_screenshot(str(self.folder / f"{name}.png"))
        self.scenario.print_step(f"{name}.png: {', '.join((*texts, *in_frame))}")

    def follow_link_of_frame(self, text, address):
        """Select a link in the frame of Airflow's page, and check that Airflow's page shows the address."""
        self.browser.evaluate(f"[...{FRAME}.links].find((link) => link.innerText === '{text}').click()")
        wait_for(lambda: self.browser.driver.current_url == address, 30, f"{address} was not opened")
        self.scenario.print_step(f"the link {text} leaves the frame")

    def _widen(self, handle):
        """Widen the grid of Airflow's page, so that all runs are visible."""
        drag = ActionChains(self.browser.driver).move_to_element_with_offset(handle, 0, -200).click_and_hold()
        for _ in range(10):
            drag = drag.move_by_offset(12, 0)
        drag.release().perform()


def take_all(scenario, browser, folder):
    """Take pages with committed, failed, waived and waiting slices, a question, Data Docs and Spark's history."""
    photographer = Photographer(browser, scenario, folder)
    photographer.log_in()
    dag_page = f"{photographer.airflow}/dags/{DAG}"
    for hour in range(2):
        scenario.run_slice(hour)
    failed_run = scenario.fail_slice_by_quality(2)
    photographer.take("airflow-failed", f"{dag_page}/runs/{failed_run}", DAG, "Failed")
    scenario.check_next_slice_waits(3)

    def take_question(dag, run):
        page = f"{photographer.airflow}/dags/{dag}/runs/{quote(run, safe='')}/tasks/approve/required_actions"
        texts = ("rejected by the quality gate", "Reason")
        photographer.take("airflow-approval", page, *texts, height=820, widens_grid=False)

    scenario.waive_and_clear(2, failed_run, take_question)
    scenario.wait_for_end(3)
    wait_for(lambda: scenario.get_task_state(HOURS - 1, "wait") == "deferred", 120, "no slice waits")
    photographer.take("airflow-waiting", dag_page, DAG, "1 of 1", height=570)
    run = quote(scenario.find_run(1)["dag_run_id"], safe="")
    photographer.take("airflow-links", f"{dag_page}/runs/{run}/tasks/run/details", "Spark history", "Success")
    (asset,) = scenario.airflow.get(f"assets?name_pattern={NAME}__slices")["assets"]
    asset_page = f"{photographer.airflow}/assets/{asset['id']}"
    photographer.take("airflow-asset", asset_page, f"{NAME}__reprocess", "Asset Events")
    take_data_docs(photographer, next((scenario.lake / NAME / "gx").rglob("index.html")))
    photographer.take("spark-history", scenario.history, f"{NAME} 2024-01-01")
    take_slices(photographer, scenario)


def take_data_docs(photographer, page):
    """Take the first page of Data Docs, unless its style sheets cannot be loaded from the internet."""
    photographer.browser.open(page)
    if photographer.browser.evaluate("getComputedStyle(document.body).fontFamily.startsWith('-apple-system')"):
        photographer.take("data-docs", page, "Validation Results")
    else:
        photographer.scenario.print_step("data-docs.png: not taken, because its style sheets could not be loaded")


def take_slices(photographer, scenario):
    """Take the pages of a pipeline with a year of slices, in Airflow's navigation and on a phone."""
    year = write_year(scenario.airflow.home / "pipelines", scenario.lake, "payments").pipeline.name
    address, rejected = f"tidemark/pipelines/{year}", "slices/2025-12-31T20:00Z"
    in_airflow = f"{photographer.airflow}/plugin/tidemark/{address}"
    photographer.take("airflow-slices", in_airflow, "Browse", height=1130, in_frame=("Needs attention", "rejected"))
    waive = f"{year}__waive"
    photographer.take("airflow-slice", f"{in_airflow}/{rejected}", "Browse", height=780, in_frame=(waive,))
    photographer.follow_link_of_frame(waive, f"{photographer.airflow}/dags/{waive}")
    phone = f"{photographer.airflow}/{address}?page=2025-12#grid-title"
    photographer.take("airflow-slices-phone", phone, "Slices of 2025-12", width=PHONE, height=844, scheme="dark")


if __name__ == "__main__":
    if find_postgres_programs() is None or not is_browser_installed():
        sys.exit("screens: install Debian's packages postgresql, chromium and chromium-driver, then run it again")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # lets context managers end all processes
    home = Path(tempfile.mkdtemp(prefix="tidemark-screens-"))
    with start_scenario(home, HOURS, 0, create_step_printer()) as scenario, open_headless_browser() as chromium:
        take_all(scenario, chromium, PROJECT / "docs" / "images")
