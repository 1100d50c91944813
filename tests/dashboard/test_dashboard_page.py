"""The page in a real browser: drawn, live, usable by keyboard, in both colours, on a phone."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from browserkit import Browser, started_browser
from dashboardkit import PATIENCE, idle, watched
from selenium.webdriver.common.keys import Keys
from talk import Talk
from waiting import until

from upriver import __version__
from upriver.cli.dashboard.producer_figures import ProducerFeed
from upriver.consumer import Consumer
from upriver.consumer.transport.connection_string import Source
from upriver.dashboard.collector import Collector
from upriver.dashboard.httpd import DashboardServer
from upriver.dashboard.progress_file import ProgressFile
from upriver.model import VBucketState
from upriver.producer.bootstrap.users import Grant, Role, Users
from upriver.producer.server_settings import ServerSettings
from upriver.store import DeleteDocument, SetDocument, document_key
from upriver.tables.progress_log import LocalProgress, ProgressBook
from upriver.testing import TemporaryProducer
from upriver.wire import kv_messages as kv

VBUCKETS = 256
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def producer() -> Iterator[TemporaryProducer]:
    with TemporaryProducer(vbuckets=VBUCKETS) as started:
        for vbucket in range(VBUCKETS):
            for number in range(4):
                started.write(b"%d" % number, b"v", vbucket=vbucket)
        for vbucket in range(192, 224):
            started.set_state(vbucket, VBucketState.REPLICA)
        for vbucket in range(224, 240):
            started.set_state(vbucket, VBucketState.PENDING)
        for vbucket in range(240, 256):
            started.set_state(vbucket, VBucketState.DEAD)
        yield started


@pytest.fixture(scope="module")
def url(producer: TemporaryProducer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("table") / "progress.jsonl"
    for number in range(5):
        finish_batch(path, number)
    # A reader and a table with names that are markup, for all of these tests.
    name = f"table {HOSTILE}"
    with (
        Consumer(producer.source, name=f"reader {HOSTILE}", vbuckets=frozenset(range(128))),
        watched(producer, [ProgressFile(path, name).sample]) as address,
    ):
        yield address


def finish_batch(path: Path, number: int) -> None:
    ProgressBook(LocalProgress(path, "run"), None).batch_done(
        advance=0,
        began=time.monotonic(),
        batch=number,
        rows=100 + number,
        bytes=1,
        steps={},
        rollbacks=0,
        dead_letters=0,
        lag=number,
        lag_seconds=number / 2,
        delay=None,
    )


@pytest.mark.story
def test_it_loads_without_a_complaint_or_a_request_to_anybody_else(
    browser: Browser, url: str
) -> None:
    browser.open(url)
    browser.until("return document.querySelectorAll('.cell.a').length === 192")
    assert browser.run("return document.querySelectorAll('.cell').length") == VBUCKETS
    assert browser.text("#legend").split("\n") == [
        "active: 192",
        "replica: 32",
        "pending: 16",
        "dead: 16",
    ]
    assert browser.complaints() == []


def test_what_comes_from_outside_is_text(browser: Browser, url: str) -> None:
    browser.open(url)
    browser.until_text("#connections", f"reader {HOSTILE}")
    browser.until_text("#pipelines h2", f"table {HOSTILE}")
    assert browser.run("return document.querySelectorAll('img').length") == 1  # the logo
    assert browser.complaints() == []


def test_figures_change_without_anybody_asking(
    browser: Browser, producer: TemporaryProducer, url: str
) -> None:
    browser.open(url)
    shown = "return document.querySelector('#totals dd').textContent"
    before = int(browser.until(shown).replace(",", ""))
    producer.write(f"new {time.time_ns()}".encode(), b"v", vbucket=150)
    browser.until(f"{shown} === arguments[0]", f"{before + 1:,}")
    # the peak of the chart stays in sight for minutes, however short the burst was
    browser.until_text(".chart .note", "peak")
    browser.until("return !document.querySelector('.chart .note').textContent.includes('peak 0 ')")
    assert browser.run("return document.querySelector('.curve').getAttribute('d').length") > 20


def test_a_click_on_a_cell_shows_its_failover_log_seqnos_copies_and_readers(
    browser: Browser, producer: TemporaryProducer, url: str
) -> None:
    browser.open(url)
    producer.fail_over(7, 3)
    browser.cell(7).click()
    browser.until_text("#detail-title", "Vbucket 7")
    names = [f"{entry.vbuuid:x}" for entry in producer.bucket.failover_log(7)]
    assert len(names) == 2
    for name in names:
        browser.until_text("#detail table[aria-label='Failover log']", name)
    rows = browser.text("#detail table[aria-label='Failover log']").split("\n")
    assert [row.split()[-1] for row in rows[1:]] == ["3", "0"]
    assert "High seqno" in browser.text("#detail dl")
    assert f"127.0.0.1:{producer.port}" in browser.text("#detail table[aria-label='Copies']")
    browser.until_text("#detail table[aria-label='Readers']", f"reader {HOSTILE}")
    assert browser.cell(7).get_attribute("aria-selected") == "true"
    # another one has no reader, and says so
    browser.cell(180).click()
    browser.until_text("#detail-title", "Vbucket 180")
    browser.until_text("#detail", "Nobody reads it.")


@pytest.mark.story
def test_a_failover_is_an_event_in_the_list_and_on_the_chart(
    browser: Browser, producer: TemporaryProducer, url: str
) -> None:
    browser.open(url)
    producer.fail_over(9, 2)
    browser.until_text("#events", "the high seqno was 4 and is 2")
    assert browser.until("return document.querySelectorAll('.chart .mark').length") >= 4
    title = browser.run("return document.querySelector('.chart .mark title').textContent")
    assert "failover" in title
    browser.one("#events button[aria-label='Show vbucket 9']").click()
    browser.until_text("#detail-title", "Vbucket 9")


def test_the_map_is_walked_with_the_keyboard(browser: Browser, url: str) -> None:
    browser.open(url)
    browser.until("return document.querySelectorAll('.cell.a').length")
    assert browser.run("return document.querySelectorAll('.cell[tabindex=\"0\"]').length") == 1
    for _ in range(12):  # one stop for the whole map, among those of the page
        browser.press(Keys.TAB)
        if browser.focused() is not None:
            break
    assert browser.focused() == "0"
    outline = (
        "const s = getComputedStyle(document.activeElement); return s.outlineStyle + s.outlineWidth"
    )
    assert browser.run(outline) == "solid2px"
    browser.press(Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert browser.focused() == "129"
    browser.press(Keys.ARROW_LEFT, Keys.ARROW_UP)
    assert browser.focused() == "64"
    browser.press(Keys.ARROW_LEFT, Keys.END)
    assert browser.focused() == "63"
    browser.press(Keys.ARROW_UP)  # there is nothing above
    assert browser.focused() == "63"
    browser.press(Keys.CONTROL + Keys.END)
    assert browser.focused() == "255"
    browser.press(Keys.HOME)
    assert browser.focused() == "192"
    label = browser.cell(192).get_attribute("aria-label")
    assert label == "vbucket 192, replica, 4 documents, seqno 4, no reader"
    browser.press(Keys.ENTER)
    browser.until_text("#detail-title", "Vbucket 192")
    browser.until_text("#announcer", "Vbucket 192 chosen")
    # what is focused stays so while figures come in
    stamp = "return document.querySelector('.curve').getAttribute('d')"
    before = browser.run(stamp)
    browser.until(f"{stamp} !== arguments[0]", before)
    assert browser.focused() == "192"
    browser.press(Keys.ESCAPE)
    browser.until_text("#detail-title", "No vbucket chosen")


def test_a_vbucket_can_be_asked_for_by_its_number(browser: Browser, url: str) -> None:
    browser.open(url)
    browser.one("#jump-to").send_keys("201", Keys.ENTER)
    browser.until_text("#detail-title", "Vbucket 201")
    browser.until_text("#detail", "replica")


def test_cells_are_coloured_by_state_or_by_lag(browser: Browser, url: str) -> None:
    browser.open(url)
    colour = "return getComputedStyle(arguments[0]).backgroundColor"
    active, pending = browser.cell(0), browser.cell(230)
    assert browser.run(colour, active) != browser.run(colour, pending)
    by_state = browser.run(colour, active)
    browser.one("input[value=lag]").send_keys(Keys.SPACE)
    browser.until("return document.getElementById('map').dataset.colour === 'lag'")
    assert browser.run(colour, active) != by_state
    browser.until_text("#legend", "no reader: 128")
    assert browser.run(colour, browser.cell(200)) == "rgba(0, 0, 0, 0)"


def test_windows_are_bars_that_say_how_full_they_are(browser: Browser, url: str) -> None:
    browser.open(url)
    bar = browser.one("#connections [role=meter]")
    assert bar.get_attribute("aria-label") == "Flow-control window in use"
    assert int(str(bar.get_attribute("aria-valuenow"))) >= 0
    assert "of 16.0 MiB" in str(bar.get_attribute("aria-valuetext"))


def test_a_pipeline_shows_its_batches(browser: Browser, url: str) -> None:
    browser.open(url)
    browser.until("return document.querySelectorAll('.pipeline rect').length === 5")
    rows = browser.text(".pipeline tbody").split("\n")
    assert [row.split()[:2] for row in rows] == [[str(n), str(100 + n)] for n in (4, 3, 2, 1, 0)]


def test_a_page_of_a_table_alone_shows_no_server(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    finish_batch(path, 0)
    with (
        Collector(None, [ProgressFile(path, "orders").sample], interval=0.05) as collector,
        DashboardServer(collector, port=0) as page,
    ):
        browser.open(page.url)
        browser.until_text("#pipelines h2", "orders")
        assert not browser.one("#server").is_displayed()
        assert not browser.one("#connections").is_displayed()
        finish_batch(path, 1)
        browser.until("return document.querySelectorAll('.pipeline rect').length === 2")
        assert browser.complaints() == []


def test_a_dashboard_that_goes_away_is_noticed_and_so_is_its_return(
    browser: Browser, producer: TemporaryProducer
) -> None:
    with watched(producer) as address:
        browser.open(address)
        port = int(address.rpartition(":")[2].strip("/"))
    browser.until_text("#status", "no answer")
    assert browser.one("#map").is_displayed()  # what was seen last stays in sight
    with (
        Collector(None, interval=0.05) as collector,
        DashboardServer(collector, port=port),
    ):
        browser.until_text("#status", "live")


GROUND = "return getComputedStyle(document.body).backgroundColor"


def test_colours_follow_the_system_until_somebody_chooses(browser: Browser, url: str) -> None:
    browser.open(url, theme="light")
    light = browser.run(GROUND)
    browser.open(url, theme="dark")
    dark = browser.run(GROUND)
    assert light != dark
    button = browser.one("#theme")
    button.click()
    assert (button.text, browser.run(GROUND)) == ("Light", light)
    button.click()
    assert (button.text, browser.run(GROUND)) == ("Dark", dark)
    browser.driver.refresh()  # the choice is kept
    browser.until_text("#theme", "Dark")


#: Every text with too little contrast to what is behind it: 4.5 to 1, as WCAG has it.
FAINT = """
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const parts = (colour) => {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
const light = (colour) => {
  const [r, g, b] = parts(colour).map((byte) => {
    const c = byte / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if (parts(colour)[3] > 250) return colour;
  }
  return "white";
};
const faint = [];
for (const element of document.querySelectorAll("body *")) {
  const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  if (!own || !element.checkVisibility() || element.closest("svg, .unseen")) continue;
  const [a, b] = [light(getComputedStyle(element).color), light(behind(element))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) faint.push([element.tagName, element.className, element.textContent, ratio]);
}
return faint;
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_contrast_in_both_colours(
    browser: Browser, producer: TemporaryProducer, url: str, theme: str
) -> None:
    browser.open(url, theme=theme)
    producer.fail_over(11, 3)
    browser.cell(3).click()
    browser.until_text("#detail-title", "Vbucket 3")
    browser.until_text("#events", "failover")
    assert browser.run(FAINT) == []


@pytest.mark.parametrize("width", [320, 390, 768, 1024, 1920])
def test_nothing_is_wider_than_the_screen(browser: Browser, url: str, width: int) -> None:
    browser.open(url, width=width, height=800)
    browser.cell(3).click()
    browser.until_text("#detail-title", "Vbucket 3")
    assert browser.run("return document.documentElement.scrollWidth") <= width
    columns = browser.run(
        "return getComputedStyle(document.querySelector('.map .row')).gridTemplateColumns"
    )
    assert len(columns.split()) == (64 if width >= 900 else 32)


def test_figures_that_come_in_move_nothing(browser: Browser, url: str) -> None:
    browser.open(url)
    counted = """
      const done = arguments[arguments.length - 1];
      let sum = 0;
      let shown = 0;
      new PerformanceObserver((list) => {
        for (const entry of list.getEntries()) sum += entry.value;
      }).observe({ type: "layout-shift", buffered: true });
      new MutationObserver(() => {
        shown += 1;
        if (shown === 3) done(sum);
      }).observe(document.querySelector(".curve"), { attributes: true });
    """
    browser.driver.set_script_timeout(PATIENCE)
    # a right-aligned number that gets another digit counts too; 0.1 is what still passes as good
    assert browser.driver.execute_async_script(counted) < 0.001


def test_assistive_technology_finds_names_and_roles(browser: Browser, url: str) -> None:
    browser.open(url)
    browser.cell(3).click()
    browser.until_text("#detail-title", "Vbucket 3")
    tree = browser.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    controls = {"button", "textbox", "spinbutton", "radio", "combobox", "meter", "grid", "image"}
    found = set()
    for node in tree:
        role = node.get("role", {}).get("value")
        if node.get("ignored") or role not in {*controls, "gridcell", "table", "region"}:
            continue
        found.add(role)
        if role != "table" or node.get("name"):
            assert node["name"]["value"].strip(), node
    assert {
        "button",
        "spinbutton",
        "radio",
        "meter",
        "grid",
        "gridcell",
        "image",
        "region",
    } <= found
    ids = browser.run("return [...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))
    assert browser.run("return document.documentElement.lang") == "en"
    assert browser.run("return document.querySelectorAll('h1').length") == 1
    assert (
        browser.run("return document.querySelectorAll('[role=grid] > :not([role=row])').length")
        == 0
    )
    assert (
        browser.run("return document.querySelectorAll('[role=row] > :not([role=gridcell])').length")
        == 0
    )


# ---- what is going on --------------------------------------------------------------------


def shown_now(browser: Browser, title: str) -> str:
    """What a chart shows as the latest figure."""
    script = """
      for (const chart of document.querySelectorAll(".chart")) {
        if (chart.querySelector("h2").textContent === arguments[0]) {
          return chart.querySelector(".now").innerText;
        }
      }
    """
    return str(browser.run(script, title))


def test_the_header_names_bucket_address_and_version(
    browser: Browser, producer: TemporaryProducer, url: str
) -> None:
    browser.open(url)
    browser.until_text("#address", f"couchbase://127.0.0.1:{producer.port}/default")
    browser.until_text("h1", f"upriver {__version__}")


def test_charts_have_a_time_axis_and_reach_back_an_hour(browser: Browser, url: str) -> None:
    browser.open(url)
    labels = "return [...document.querySelectorAll('.chart .axis span')].map((e) => e.textContent)"
    named = browser.until(f"{labels.replace('return', 'const all =')}; return all.length && all")
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d", label) for label in named)
    browser.one("input[name=range][value='3600']").send_keys(Keys.SPACE)
    browser.until(
        f"{labels.replace('return', 'const all =')};"
        "return all.length && all.every((text) => /^\\d\\d:\\d\\d$/.test(text))"
    )
    browser.until("return document.querySelector('.curve').getAttribute('d').startsWith('M')")
    assert browser.complaints() == []


def test_lag_is_shown_by_reader_and_pipeline_in_changes_and_in_seconds(
    browser: Browser, tmp_path: Path
) -> None:
    file = ProgressFile(tmp_path / "progress.jsonl", "orders", lambda: idle(7, 3.5))
    with TemporaryProducer(vbuckets=2) as producer:
        for number in range(400):
            producer.write(b"%d" % number, b"v" * 1000, vbucket=0)
        # a reader that takes no more than its window
        with (
            Consumer(producer.source, name="slow", buffer=64 * 1024) as consumer,
            watched(producer, [file.sample]) as url,
        ):
            next(iter(consumer))
            browser.open(url)
            browser.until_text("#lags-card .legend", "orders (pipeline): 7")
            legend = "return document.querySelector('#lags-card .legend').innerText"
            behind = "const found = document.querySelector('#lags-card .legend').innerText"
            browser.until(f"{behind}.match(/slow: ([1-9]\\d*)/); return found && found[1]")
            changes = int(re.search(r"slow: (\d+)", browser.run(legend))[1])  # type: ignore[index]
            assert 100 < changes < 400
            assert browser.run("return document.querySelectorAll('#lags-card .curve').length") == 2
            browser.one("input[name=lag-unit][value=seconds]").send_keys(Keys.SPACE)
            browser.until(f"{behind}; return /slow: [\\d.]+ (ms|s)/.test(found)")
            browser.until_text("#lags-card .legend", "orders (pipeline): 3.5 s")
            browser.until_text("#lags-card .legend", "orders (pipeline): 3.5 s")
            # the list of connections has both
            browser.until_text("#connections", f"{changes}, ")


def test_latencies_are_percentiles_of_requests_and_of_deliveries(browser: Browser) -> None:
    with TemporaryProducer(vbuckets=2) as producer, watched(producer) as url:
        browser.open(url)
        browser.until_text("#charts", "no request")
        browser.until_text("#charts", "no delivery")
        folded = "return document.querySelectorAll('.chart.folded').length"
        assert browser.run(folded) == 2
        with (
            Talk(Source.parse(producer.source)) as talk,
            Consumer(producer.source, name="live") as consumer,
        ):
            changes = iter(consumer)
            for number in range(20):
                talk.ask(kv.Set(key=b"%d" % number, value=b"v", vbucket=1))
                talk.ask(kv.Get(key=b"%d" % number, vbucket=1))
                next(changes)
            browser.until(f"{folded} === 0")
            for title in ("Requests", "Write to delivery"):
                assert re.fullmatch(r"[\d.]+ m?s p99, p50 [\d.]+ m?s", shown_now(browser, title)), (
                    title
                )


def test_memory_processor_and_disk_are_shown(browser: Browser, url: str) -> None:
    browser.open(url)
    browser.until("return document.querySelectorAll('.curve').length >= 8")
    assert re.fullmatch(r"[\d.]+ [MG]iB", shown_now(browser, "Memory"))
    assert re.fullmatch(r"[\d.]+%", shown_now(browser, "Processor"))
    assert re.fullmatch(r"[\d.]+ [KMG]iB", shown_now(browser, "Disk"))
    browser.until_text("#totals", "Disk free")


def test_collections_are_listed_with_their_counts(browser: Browser) -> None:
    with TemporaryProducer(vbuckets=4) as producer, watched(producer) as url:
        scope = producer.bucket.create_scope("shop")
        orders = producer.bucket.create_collection(scope.id, "orders")
        for number in range(12):
            key = document_key(b"%d" % number, orders.id)
            producer.bucket.write(SetDocument(number % 4, key, b"{}"))
        producer.write(b"k", b"v", vbucket=1)
        browser.open(url)
        browser.until("return document.querySelectorAll('#collections tr').length === 2")
        browser.until_text("#collections", "shop\torders\t12")
        browser.until_text("#collections", "_default\t_default\t1")
        producer.bucket.write(DeleteDocument(0, document_key(b"0", orders.id)))
        browser.until_text("#collections", "shop\torders\t11")


def test_a_document_is_shown_with_its_versions(browser: Browser) -> None:
    with TemporaryProducer(vbuckets=4) as producer, watched(producer) as url:
        for value in (b'{"total": 1}', HOSTILE.encode(), b'{"total": 3}'):
            producer.write(b"order:1", value)
        browser.open(url)
        browser.one("#document-key").send_keys("order:1", Keys.ENTER)
        browser.until("return document.querySelectorAll('#versions > li').length === 3")
        assert '"total": 3' in browser.text("#versions")
        browser.run("document.querySelectorAll('#versions details').forEach((e) => e.open = true)")
        assert HOSTILE in browser.text("#versions")
        assert browser.run("return document.querySelectorAll('img').length") == 1
        producer.delete(b"order:1")
        browser.one("#document-key").send_keys(Keys.ENTER)
        browser.until_text("#versions", "deletion, newest")
        browser.one("#document-key").send_keys("23", Keys.ENTER)
        browser.until_text("#document-note", "there is no document with this key")
        assert browser.run("return document.querySelectorAll('#versions > li').length") == 0


def test_panels_with_nothing_to_show_fold_and_say_why(browser: Browser) -> None:
    with TemporaryProducer(vbuckets=4) as producer, watched(producer) as url:
        browser.open(url)
        for card, reason in (
            ("connections-card", "nobody is connected"),
            ("events-card", "no failover, rollback or change of state"),
            ("collections-card", "only the default one"),
            ("lags-card", "nobody reads changes"),
        ):
            browser.until_text(f"#{card}", reason)
            assert browser.run(f"return document.getElementById('{card}').offsetHeight") < 100
        producer.write(b"k", b"v", vbucket=1)
        producer.write(b"l", b"v", vbucket=1)
        producer.fail_over(1, 1)
        browser.until_text("#events", "failover")
        assert browser.one("#events").is_displayed()


def test_a_fault_is_told_in_words(browser: Browser) -> None:
    def fails() -> None:
        raise KeyError("vbuckets")

    with (
        Collector(fails, interval=0.05) as collector,  # type: ignore[arg-type]
        DashboardServer(collector, port=0) as page,
    ):
        browser.driver.get(page.url)
        browser.until_text("#status", "the figures cannot be read; the log says why")
        assert "KeyError" not in browser.text("body")
        until(lambda: collector.latest.document["problem"])


def test_viewers_sign_in_where_the_server_has_users(browser: Browser, tmp_path: Path) -> None:
    users = Users()
    users.add("ann", "secret", Grant(Role.READ_DATA, "default"), iterations=4096)
    users.add("bob", "secret", Grant(Role.READ_STREAM, "default"), iterations=4096)
    users.save(tmp_path / "users.json")
    settings = ServerSettings(users=tmp_path / "users.json")

    def sign_in(user: str, password: str) -> None:
        browser.until("return document.getElementById('sign-in').checkVisibility()")
        for field, text in (("user", user), ("password", password)):
            browser.one(f"#sign-in-{field}").clear()
            browser.one(f"#sign-in-{field}").send_keys(text)
        browser.one("#sign-in button").click()

    def look_up() -> None:
        browser.until_text("#status", "live")
        browser.until("return document.getElementById('document-key').checkVisibility()")
        browser.one("#document-key").send_keys("k", Keys.ENTER)

    with TemporaryProducer(vbuckets=4, settings=settings) as producer:
        producer.write(b"k", b'"the value"')
        feed = ProducerFeed(producer.producer)
        with (
            Collector(feed.sample, interval=0.05) as collector,
            DashboardServer(collector, feed, port=0) as page,
        ):
            browser.driver.get(page.url)
            sign_in("ann", "wrong")
            browser.until_text("#sign-in-note", "the name or the password is wrong")
            assert not browser.one("#main").is_displayed()
            sign_in("ann", "secret")
            look_up()
            browser.until_text("#versions", "the value")
            assert browser.run("return document.cookie") == ""  # no script can read it
            browser.one("#sign-out").click()
            sign_in("bob", "secret")
            look_up()
            browser.until_text("#document-note", "user bob has no role read_data")
