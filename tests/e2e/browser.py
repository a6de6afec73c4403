"""A headless Chromium for tests of the web page; nothing of it is needed to build or to run ampd."""

import json
import os
import shutil
import time
import urllib.parse

from ampd_process import DaemonTest, eventually

# Long, since a browser shares its machine with trainings and other tests.
WAIT = 120


def missing():
    """Why there is no browser here, or None."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "python3-selenium is not installed"
    for name in ("chromium", "chromedriver"):
        if shutil.which(name) is None:
            return f"{name} is not installed (apt-get install chromium chromium-driver python3-selenium)"
    return None


class Browser:
    """One window. What the page requests and what it writes to its console is kept until it is asked for."""

    def __init__(self, width=1280, height=900):
        from selenium import webdriver
        from selenium.webdriver.chrome.options import Options
        from selenium.webdriver.chrome.service import Service
        options = Options()
        options.binary_location = shutil.which("chromium")
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars",
                         f"--window-size={width},{height}", "--force-device-scale-factor=1", "--no-first-run",
                         "--disable-background-networking", "--disable-component-update"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        service = Service(shutil.which("chromedriver"), log_path=os.devnull)
        self.driver = webdriver.Chrome(service=service, options=options)
        self.driver.set_page_load_timeout(WAIT)
        self.driver.set_script_timeout(WAIT)
        self.requested = []
        self.console = []
        self.size(width, height)

    def close(self):
        self.driver.quit()

    def size(self, width, height=900):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500})

    def prefer(self, scheme):
        """'light' or 'dark': what the system asks for."""
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": scheme}]})

    def open(self, url):
        # Away first: another fragment of the page that is open would not load it anew.
        self.driver.get("about:blank")
        self.driver.get(url)

    def js(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def until(self, script, what, *arguments, seconds=WAIT):
        """The first true value that `script` returns. One that throws, as where an element is not there while the page
        goes from one view to another, has none yet; what it threw last is told if the time runs out."""
        from selenium.common.exceptions import JavascriptException
        thrown = None

        def value():
            nonlocal thrown
            try:
                found, thrown = self.js(script, *arguments), None
            except JavascriptException as error:
                found, thrown = None, error.msg
            return found or time.sleep(0.05)

        try:
            return eventually(value, what, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{thrown or ''}\n{self.text()}\n{self.take_console()}") from None

    def until_text(self, selector, text, seconds=WAIT):
        """Waits until an element's text has `text`."""
        return self.until("const e = document.querySelector(arguments[0]); return e && !e.hidden && e.innerText.includes(arguments[1]);",
                          f"{selector} with {text!r}", selector, text, seconds=seconds)

    def text(self, selector="body"):
        return self.js("const e = document.querySelector(arguments[0]); return e ? e.innerText : '';", selector)

    def count(self, selector):
        return self.js("return [...document.querySelectorAll(arguments[0])].filter((e) => e.offsetParent !== null).length;", selector)

    def press(self, *keys):
        """Keys as a person presses them, on what has the focus."""
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.keys import Keys
        for key in keys:
            ActionChains(self.driver).send_keys(getattr(Keys, key, key)).perform()

    def click(self, selector):
        # In one script: between two the page may have gone on and taken the element away.
        self.until("""const e = document.querySelector(arguments[0]);
            if (!e || e.disabled || e.offsetParent === null) return false;
            e.click();
            return true;""", selector, selector)

    def focused(self, script="return document.activeElement.outerHTML;"):
        return self.js(script)

    def take_console(self):
        """Warnings and errors of the page since the last call."""
        self.console += self.driver.get_log("browser")
        found, self.console = self.console, []
        return [f"{entry['level']} {entry['message']}" for entry in found if entry["level"] in ("SEVERE", "WARNING")]

    def requests(self):
        """Hosts (with ports) and schemes of everything requested since the last call."""
        found = set()
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] not in ("Network.requestWillBeSent", "Network.webSocketCreated"):
                continue
            parameters = message["params"]
            url = urllib.parse.urlsplit(parameters.get("request", parameters)["url"])
            found.add((url.scheme, url.netloc))
        return found

    def save_into(self, folder):
        """Where files go that the page has the browser save."""
        self.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": folder})

    def screenshot(self, path):
        self.driver.save_screenshot(path)


class PageTest(DaemonTest):
    """A test of the page, in one window. It fails over what the page writes to its console, and over a request that leaves the server."""

    @classmethod
    def setUpClass(cls):
        cls.browser = Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()

    def setUp(self):
        super().setUp()
        self.browser.size(1280)
        self.browser.prefer("light")
        # What the test itself brings about, by the words in the browser's messages: here, that it looks at pixels.
        self.expected = ["willReadFrequently"]
        self.origins = set()
        self.browser.take_console()
        self.browser.requests()

    def open(self, daemon, path=""):
        self.origins.add(daemon.http_address)
        self.browser.open(f"http://{daemon.http_address}/{path}")
        # Gone, should the page be loaded anew.
        self.browser.js("window.sameLoad = true;")

    def tearDown(self):
        said = self.browser.take_console()
        # Before the daemon goes, which the page would tell of.
        self.browser.open("about:blank")
        self.assertEqual([line for line in said if not any(text in line for text in self.expected)], [], "the page's console")
        asked = {host for scheme, host in self.browser.requests() if scheme in ("http", "https", "ws", "wss")}
        self.assertLessEqual(asked, self.origins, "a request left the server")
        super().tearDown()

    def assert_never_reloaded(self):
        self.assertTrue(self.browser.js("return window.sameLoad === true;"), "the page was loaded anew")

    def row(self, job):
        return f"tr[data-job='{job.id}']"

    def sign_in(self, token):
        self.browser.js("document.getElementById('token').value = arguments[0]; document.querySelector('form.sign-in').requestSubmit();", token)
