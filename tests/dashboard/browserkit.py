"""A real browser with one page, and what a person would do with it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from dashboardkit import PATIENCE
from waiting import until

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
CHROMEDRIVER = shutil.which("chromedriver")
if CHROMIUM is None or CHROMEDRIVER is None:
    pytest.skip("chromium and chromedriver are not installed", allow_module_level=True)
pytest.importorskip("selenium", reason="selenium is not installed")

from selenium import webdriver  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.remote.webelement import WebElement  # noqa: E402


class Browser:
    """A page that is open, and what a person would do with it."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str, width: int = 1280, height: int = 900, theme: str = "light") -> None:
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": theme}]},
        )
        self.driver.get(url)
        self.driver.execute_script("localStorage.clear()")
        self._log("browser")
        self._log("performance")
        self.driver.get(url)
        self.until("return document.getElementById('status').textContent === 'live'")

    def _log(self, kind: str) -> Any:
        driver: Any = self.driver  # this method of Selenium has no types
        return driver.get_log(kind)

    def until(self, script: str, *arguments: object) -> Any:
        """What a script returns, as soon as that is something."""
        return until(lambda: self.run(script, *arguments), what=script)

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def cell(self, vbucket: int) -> WebElement:
        return self.one(f'[data-vbucket="{vbucket}"]')

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0]).innerText", selector))

    def until_text(self, selector: str, wanted: str) -> None:
        script = "return document.querySelector(arguments[0]).innerText.includes(arguments[1])"
        self.until(script, selector, wanted)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def focused(self) -> str | None:
        return self.driver.switch_to.active_element.get_attribute("data-vbucket")

    def complaints(self) -> list[str]:
        """What the console said, and each request that went elsewhere."""
        said = [entry["message"] for entry in self._log("browser")]
        host = self.run("return location.host")
        for entry in self._log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                address = message["params"]["request"]["url"]
                if not address.startswith((f"http://{host}/", "data:")):
                    said.append(f"asked {address}")
        return said


@contextmanager
def started_browser() -> Iterator[Browser]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(CHROMEDRIVER))
    driver.set_page_load_timeout(PATIENCE)
    try:
        yield Browser(driver)
    finally:
        driver.quit()
