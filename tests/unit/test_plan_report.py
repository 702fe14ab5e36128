"""The page of a plan: what it holds, and that nothing in the data becomes markup or script."""

import ast
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from feast_sketch_store.planning.plan import Estimate, Plan, PlannedField, Point
from feast_sketch_store.planning.report import bytes_text, to_html
from tests.helpers.browser import browse, layout
from tests.helpers.cases import for_each

HOSTILE = "</script><script>alert('1')</script><!-- \"q\" & {{plan}} \\ \u2028 é\n</code>"
VOID = {"meta"}


def point(curve="bloom", label="error rate 0.01", **changes):
    fields = {
        "memory_bytes": 1.5e9,
        "table_bits_per_fact": 9.1,
        "bits_per_fact": 9.6,
        "false_per_read": 2.5,
        "noise_ratio": 0.05,
        "kept_share": 1.0,
        "settings": {"viewed": {"sketch.target": "error 0.01"}},
    }
    fields |= changes
    known = {"memory_low": fields["memory_bytes"], "memory_high": fields["memory_bytes"]}
    return Point(curve, label, **{**known, **fields})


def plan(*points, **changes):
    fields = {
        "view": "history",
        "num_entities": 27_285_000,
        "facts": Estimate.exactly(1_201_352_000),
        "sampled_entities": 26_469,
        "vocabulary_sizes": {"viewed": Estimate.exactly(7342)},
        "chosen": 0,
        "knee": 0,
        "target": "an AUC within 0.002",
        "limits": ["Figures of a sample.", "By formula."],
    }
    return Plan(points=points or (point(),), **{**fields, **changes})


def plan_with_auc():
    points = [
        point(
            curve,
            f"point {number}",
            memory_bytes=1e6 * 2**number,
            table_bits_per_fact=2**number,
            bits_per_fact=1.25 * 2**number,
            false_per_read=10.0**-number,
            noise_ratio=10.0**-number / 45,
            kept_share=1 - 0.1 * number,
            auc=Estimate(0.73 + 0.001 * number, 0.72, 0.74),
            settings={"viewed": {"sketch.target": f"{2**number}MB"}, "liked": {"sketch.structure": curve}},
        )
        for curve in ("bloom", "weighted_bloom")
        for number in range(3)
    ]
    redis = point("Redis", "a hash per entity", false_per_read=0.0, noise_ratio=0.0, settings={})
    return plan(
        *points,
        redis,
        chosen=4,
        knee=1,
        auc_without=Estimate(0.6925, 0.69, 0.695),
        auc_exact=Estimate(0.7392, 0.737, 0.741),
    )


class Page(HTMLParser):
    """The elements of a page, each as [tag, attributes, text of it and of what is in it]."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.open, self.comments = [], [], []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs)
        element = [tag, dict(attrs), ""]
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for element in self.open:
            element[2] += data

    def handle_comment(self, data):
        self.comments.append(data)

    def texts(self, tag):
        return [text for name, _, text in self.elements if name == tag]

    def text_of(self, element_id):
        (text,) = [text for _, attributes, text in self.elements if attributes.get("id") == element_id]
        return text

    def rows(self):
        """Per row of the table its number, and its cells."""
        start = [tag for tag, _, _ in self.elements].index("tbody")
        rows = []
        for tag, attributes, text in self.elements[start:]:
            if tag == "tr":
                rows.append((attributes["data-point"], []))
            elif tag in ("th", "td"):
                rows[-1][1].append(text)
        return rows

    def data(self):
        def refuse(constant):
            raise AssertionError(f"{constant} is no JSON")

        return json.loads(self.text_of("plan"), parse_constant=refuse)


def test_the_head_tells_what_the_plan_is_about():
    page = Page(to_html(plan()))
    assert page.texts("title") == ["Plan of history"]
    assert page.texts("h1") == ["Plan of history"]
    assert "Asked for: an AUC within 0.002" in page.texts("p")
    facts = dict(zip(page.texts("dt"), page.texts("dd"), strict=True))
    assert facts == {
        "Entities": "27,285,000",
        "Facts": "1,201,352,000",
        "Sampled entities": "26,469",
        "Values of viewed": "7,342",
    }


def test_intervals_are_shown():
    sampled = plan(
        point(memory_bytes=2e6, memory_low=1.9e6, memory_high=2.04e6),
        facts=Estimate(1000, 950, 1050),
        vocabulary_sizes={"viewed": Estimate(70, 60, 90)},
    )
    page = Page(to_html(sampled))
    facts = dict(zip(page.texts("dt"), page.texts("dd"), strict=True))
    assert facts["Facts"] == "1,000 (950 to 1,050)"
    assert facts["Values of viewed"] == "70 (60 to 90)"
    assert page.rows()[0][1][2] == "2 MB ± 5 %"


@pytest.mark.parametrize(("low", "text"), [(1.996e6, "0.2"), (1.9e6, "5"), (1.52e6, "24"), (0.0, "100")])
def test_half_of_an_interval_is_shown_without_an_exponent(low, text):
    assert bytes_text(Estimate(2e6, low, 2e6)) == f"2 MB ± {text} %"


def test_the_script_finds_every_element_that_it_names():
    page = Page(to_html(plan()))
    ids = [attributes["id"] for _, attributes, _ in page.elements if "id" in attributes]
    named = set(re.findall(r'element\("(\w+)"\)', page.texts("script")[-1]))
    assert len(ids) == len(set(ids))
    assert named == set(ids)


def test_every_point_is_in_the_embedded_data():
    given = plan_with_auc()
    data = Page(to_html(given)).data()
    assert (data["chosen"], data["knee"]) == (4, 1)
    assert data["auc_without"] == vars(given.auc_without)
    assert data["auc_exact"] == vars(given.auc_exact)
    for drawn, original in zip(data["points"], given.points, strict=True):
        expected = {**vars(original), "auc": original.auc and vars(original.auc)}
        expected["uplift"] = original.uplift and vars(original.uplift)
        for name in ("settings", "memory_low", "memory_high"):
            del expected[name]
        assert {name: value for name, value in drawn.items() if name != "fields"} == expected


def test_every_point_is_in_the_table():
    rows = Page(to_html(plan_with_auc())).rows()
    assert [number for number, _ in rows] == [*"0123456"]
    point_1 = ["2 MB", "2.5", "2", "0.1", "0.00222", "90 %", "0.7310 (0.7200 to 0.7400)"]
    assert rows[1][1] == ["bloom", "point 1 knee", *point_1]
    assert rows[4][1] == ["weighted_bloom", "point 1 chosen", *point_1]
    assert rows[6][1] == ["Redis", "a hash per entity", "1.5 GB", "9.6", "9.1", "0", "0", "100 %", "-"]


def test_without_auc_there_is_no_column_of_it():
    page = Page(to_html(plan(point(), point("weighted_bloom"))))
    assert not [text for text in page.texts("th") if "AUC" in text]
    assert {len(cells) for _, cells in page.rows()} == {8}
    assert [drawn["auc"] for drawn in page.data()["points"]] == [None, None]


@for_each(
    ("number", "text"),
    [
        (0, "0 B"),
        (999.4, "999 B"),
        (999.6, "1 kB"),
        (1.234e6, "1.23 MB"),
        (999.7e9, "1 TB"),
        (4.5678e15, "4,568 TB"),
    ],
)
def test_bytes_are_told_in_the_unit_that_keeps_them_short(number, text):
    assert Page(to_html(plan(point(memory_bytes=number)))).rows()[0][1][2] == text


@for_each(
    ("number", "text"), [(0, "0"), (1.2e-7, "1.2e-07"), (99.96, "100"), (2100, "2,100"), (float("inf"), "-")]
)
def test_numbers_are_told_in_three_digits(number, text):
    assert Page(to_html(plan(point(noise_ratio=number)))).rows()[0][1][6] == text


def test_what_is_not_finite_is_not_drawn():
    nothing = float("nan")
    given = point(noise_ratio=float("inf"), false_per_read=nothing, auc=Estimate(0.7, nothing, nothing))
    (drawn,) = Page(to_html(plan(given))).data()["points"]
    assert drawn["noise_ratio"] is None
    assert drawn["false_per_read"] is None
    assert drawn["auc"] == {"value": 0.7, "low": None, "high": None}


@for_each(
    "settings",
    [
        {"viewed": {"sketch.target": "auto"}},
        {
            "viewed": {"sketch.structure": "sets", "sketch.vocabulary": "{file: plans/history.viewed.json}"},
            "b": {},
        },
        {HOSTILE: {HOSTILE: HOSTILE}, "a'b": {"x": "'"}, "\x7f\x00😀": {"tab": "\t"}},
    ],
)
def test_settings_are_python_to_paste(settings):
    page = Page(to_html(plan(point(settings=settings))))
    text = page.data()["points"][0]["fields"]
    assert page.text_of("fields") == text
    pasted = {}
    for call in ast.parse(f"[\n{text}\n]").body[0].value.elts:
        name, dtype, tags = (keyword.value for keyword in call.keywords)
        assert [call.func.id, *(k.arg for k in call.keywords)] == ["Field", "name", "dtype", "tags"]
        assert dtype.value is ...
        pasted[ast.literal_eval(name)] = ast.literal_eval(tags)
    assert pasted == settings


def test_short_settings_take_a_line_and_long_ones_stay_narrow():
    short, long = (
        {"sketch.target": "error 0.01"},
        {"sketch.structure": "sets", "sketch.vocabulary": "{top: 1000}"},
    )
    data = Page(to_html(plan(point(settings={"viewed": short, "viewed_categories": long})))).data()
    lines = data["points"][0]["fields"].splitlines()
    assert lines[0] == 'Field(name="viewed", dtype=..., tags={"sketch.target": "error 0.01"}),'
    assert lines[1] == "Field("
    assert '        "sketch.vocabulary": "{top: 1000}",' in lines


DECLARED = PlannedField(
    "Set(Int64)", 'what "they" saw', {"owner": "ads", "sketch.advanced": "{max_vocabulary: 9}"}
)


def test_fields_are_pasted_as_they_are_declared():
    page = Page(to_html(plan(fields={"viewed": DECLARED})))
    text = page.text_of("fields")
    (call,) = ast.parse(f"[\n{text}\n]").body[0].value.elts
    name, dtype, description, tags = (ast.unparse(keyword.value) for keyword in call.keywords)
    assert (name, dtype) == ("'viewed'", "Set(Int64)")
    assert ast.literal_eval(description) == DECLARED.description
    assert ast.literal_eval(tags) == {**DECLARED.tags, "sketch.target": "error 0.01"}
    assert "..." not in text


def test_the_page_says_when_the_view_has_the_settings_already():
    reported = "The view has these settings already"
    assert reported in to_html(plan(is_current=True))
    assert reported not in to_html(plan())
    assert Page(to_html(plan())).text_of("current") == ""


def test_a_point_without_settings_says_so():
    page = Page(to_html(plan(point("Redis", "a hash per entity", settings={}))))
    assert page.text_of("fields").startswith("# Nothing to set")


def hostile_plan(text):
    given = point(text, text, settings={text: {text: text}})
    return plan(
        given,
        view=text,
        target=text,
        vocabulary_sizes={text: Estimate.exactly(3)},
        limits=[text, "By formula."],
        knee=0,
    )


def test_nothing_in_the_data_becomes_markup():
    harmless, hostile = Page(to_html(hostile_plan("x"))), Page(to_html(hostile_plan(HOSTILE)))
    tags = [(tag, attributes) for tag, attributes, _ in harmless.elements]
    assert [(tag, attributes) for tag, attributes, _ in hostile.elements] == tags
    assert not hostile.comments
    assert hostile.texts("script")[-1] == harmless.texts("script")[-1]


def test_hostile_text_is_shown_as_it_is():
    page = Page(to_html(hostile_plan(HOSTILE)))
    assert page.texts("h1") == [f"Plan of {HOSTILE}"]
    assert f"Asked for: {HOSTILE}" in page.texts("p")
    assert page.texts("li")[0] == HOSTILE
    assert f"Values of {HOSTILE}" in page.texts("dt")
    assert page.rows()[0][1][:2] == [HOSTILE, f"{HOSTILE} chosen knee"]
    (drawn,) = page.data()["points"]
    assert (drawn["curve"], drawn["label"]) == (HOSTILE, HOSTILE)


def test_embedded_data_holds_nothing_that_html_reads():
    (_, rest) = to_html(hostile_plan(HOSTILE)).split('id="plan">')
    assert not set(rest.split("</script>")[0]) & set("<>&\u2028")


@pytest.mark.parametrize("width", [400, 1200])
def test_a_page_does_not_scroll_sideways(tmp_path, width):
    html = to_html(replace(plan_with_auc(), view="a_view_with_a_long_name_" * 4, fields={"viewed": DECLARED}))
    (tmp_path / "plan.html").write_text(html, encoding="utf-8")
    assert layout(tmp_path / "plan.html", tmp_path, width)["width"] <= width


def test_a_page_with_cuts_draws_the_facts_kept_and_a_line_per_curve(tmp_path):
    """In a browser: the axis that the page chooses, its curves, and the settings of the choice."""
    points = [
        point(curve, f"point {number}", memory_bytes=1e6 * 2**number, kept_share=1 - 0.1 * number)
        for curve in (
            "most popular values, bloom, error rate 0.1",
            "most popular values, bloom, error rate 0.01",
        )
        for number in range(3)
    ]
    (tmp_path / "plan.html").write_text(to_html(plan(*points)), encoding="utf-8")
    page = Page(re.sub(r"<br>|<hr>|<input[^>]*>", "", browse(tmp_path / "plan.html", tmp_path)))
    assert "Share of facts kept; higher is better" in page.texts("text")
    assert "sketch.target" in page.text_of("fields")
    named = [text.strip() for text in page.texts("button") if "error rate" in text]
    assert sorted(named) == sorted({point.curve for point in points})  # the legend


def test_the_page_loads_nothing():
    html = to_html(plan_with_auc())
    assert re.findall(r"\w+://|url\(|@import|\bimport\b|fetch\(", html) == []
    page = Page(html)
    loading = {"src", "href", "srcset", "data", "action", "style"}
    assert not [tag for tag, attributes, _ in page.elements if loading & set(attributes)]
    (policy,) = [attributes["content"] for _, attributes, _ in page.elements if "http-equiv" in attributes]
    assert policy.startswith("default-src 'none';")
