"""Filters and switches change what is shown, and back again."""

import pytest

from browser.runs import LAYERS

BY_LAYER = ("constant_against_length", "constant_against_radius", "layers_by_length", "heads_by_layer")


def box(report, layer):
    return report.find(f'form#filters fieldset#filter-layers input[type=checkbox][name=layer][value="{layer}"]')


def size(report):
    return {name: (report.marks(name), sum(map(len, report.numbers(name)))) for name in BY_LAYER}


def visible_rows(report):
    return [
        (row.get_attribute("data-map"), int(row.get_attribute("data-layer")))
        for row in report.find("#answer-table tbody[data-layer]").all()
        if row.is_visible()
    ]


def test_everything_is_shown_at_first(shown):
    report = shown("two maps")
    assert report.find("fieldset#filter-layers input[name=layer]").count() == len(LAYERS)
    assert all(box(report, layer).is_checked() for layer in LAYERS)
    assert report.find("select#filter-map").input_value() == ""
    assert report.find("input[type=radio][name=scale][value=log]").is_checked()
    assert len(visible_rows(report)) == 2 * len(LAYERS)
    assert all(section.is_visible() for section in report.find("section.measurement").all())


@pytest.mark.slow
def test_a_layer_that_is_unchecked_leaves_the_table_and_every_chart(borrowed):
    report = borrowed("small")
    before = size(report)
    assert all(marks > 0 and cells > 0 for marks, cells in before.values()), before
    check_without(report, 2, before)


def check_without(report, layer, before):
    box(report, layer).uncheck()
    report.settle()
    assert visible_rows(report) == [("attention", other) for other in LAYERS if other != layer]
    assert report.find(f'#answer-table tbody[data-layer="{layer}"]').get_attribute("hidden") is not None
    for name, (marks, cells) in size(report).items():
        assert 0 < marks < before[name][0], name
        assert 0 < cells < before[name][1], name
    box(report, layer).check()
    report.settle()
    assert len(visible_rows(report)) == len(LAYERS)
    assert size(report) == before


@pytest.mark.slow
def test_without_any_layer_the_page_still_works(borrowed):
    report = borrowed("small")
    before = size(report)
    for layer in LAYERS:
        box(report, layer).uncheck()
    report.settle()
    assert visible_rows(report) == []
    assert report.find("#no-layer").inner_text().startswith("No layer is chosen")
    assert report.find(".closer .nothing").is_visible()
    assert not report.find(".closer .chosen").is_visible()
    assert report.find(".chosen-layer").input_value() == ""
    for layer in LAYERS:
        box(report, layer).check()
    report.settle()
    assert size(report) == before
    assert not report.find("#no-layer").is_visible()
    assert report.find(".closer .chosen").is_visible()


@pytest.mark.slow
def test_choosing_a_map_hides_the_others(borrowed):
    report = borrowed("two maps")
    chosen = report.find("select#filter-map")
    assert set(chosen.locator("option").evaluate_all("all => all.map(option => option.value)")) == {
        "",
        "attention",
        "residual",
    }
    for part, other in (("residual", "attention"), ("attention", "residual")):
        chosen.select_option(part)
        report.settle()
        assert visible_rows(report) == [(part, layer) for layer in LAYERS]
        assert report.find(f'section.measurement[data-map="{part}"]').is_visible()
        assert not report.find(f'section.measurement[data-map="{other}"]').is_visible()
        for drawing in report.find(f'section.measurement[data-map="{part}"] div.drawing svg').all():
            assert drawing.bounding_box()["width"] > 50
    chosen.select_option("")
    report.settle()
    assert len(visible_rows(report)) == 2 * len(LAYERS)
    assert all(section.is_visible() for section in report.find("section.measurement").all())


@pytest.mark.slow
def test_filters_by_layer_and_by_map_work_together(borrowed):
    report = borrowed("two maps")
    box(report, 2).uncheck()
    report.find("select#filter-map").select_option("residual")
    report.settle()
    assert visible_rows(report) == [("residual", 0), ("residual", 5)]
    report.find("select#filter-map").select_option("")
    report.settle()
    assert visible_rows(report).count(("attention", 2)) == 0
    assert len(visible_rows(report)) == 4


def test_the_scale_is_logarithmic_or_linear_at_a_click(borrowed):
    report = borrowed("small")
    logarithmic = report.labels("constant_against_length")
    assert logarithmic
    report.find("input[name=scale][value=linear]").check()
    report.settle()
    linear = report.labels("constant_against_length")
    assert linear
    assert linear != logarithmic
    report.find("input[name=scale][value=log]").check()
    report.settle()
    assert report.labels("constant_against_length") == logarithmic


def test_every_redraw_has_a_promise_of_its_own(borrowed):
    report = borrowed("small")
    changes = {
        "layer": box(report, 0).uncheck,
        "scale": report.find("input[name=scale][value=linear]").check,
        "chosen layer": lambda: report.find("select.chosen-layer").select_option("2"),
    }
    for name, change in changes.items():
        before = report.page.evaluate_handle("() => [window.howsmooth.ready]")
        change()
        assert report.page.evaluate("([before]) => before !== window.howsmooth.ready", before), name
        assert report.page.evaluate("() => window.howsmooth.ready instanceof Promise"), name
        report.settle()


def test_the_ladder_shows_the_chosen_layer(borrowed):
    report = borrowed("small")
    choice = report.find("section.measurement select.chosen-layer")
    assert choice.locator("option:not([value=''])").count() == len(LAYERS)
    seen = []
    for layer in LAYERS:
        choice.select_option(str(layer))
        report.settle()
        seen.append((report.drawing("bounds_ladder"), str(report.numbers("bounds_ladder"))))
    drawings, tables = (set(shown) for shown in zip(*seen, strict=True))
    assert len(drawings) == len(tables) == len(LAYERS)


def chosen(report):
    """Return the layer that is looked at closely, by everything that says which."""
    said = {
        report.find(".closer .chosen-layer").first.input_value(),
        *(row.get_attribute("data-layer") for row in report.find('#answer-table tbody.chosen[data-section="0"]').all()),
        *(
            row.get_attribute("data-layer")
            for row in report.find(".closer .one-layer tr[data-layer]:not([hidden])").all()
        ),
    }
    assert len(said) == 1, said
    assert report.find('#answer-table .choose[aria-pressed="true"]').count() >= 1
    return int(said.pop())


def test_a_row_of_the_answer_chooses_the_layer_below_by_mouse_and_by_keyboard(borrowed):
    report = borrowed("small")
    assert chosen(report) == 5  # the least smooth
    report.find('#answer-table tbody[data-layer="0"] tr.more').click()
    report.settle()
    assert chosen(report) == 0
    drawing = report.drawing("bounds_ladder")
    report.find('#answer-table tbody[data-layer="2"] button.choose').focus()
    report.page.keyboard.press("Enter")
    report.settle()
    assert chosen(report) == 2
    assert report.drawing("bounds_ladder") != drawing
    report.find(".chosen-layer").select_option("5")
    report.settle()
    assert chosen(report) == 5


def test_filtering_down_to_one_layer_chooses_it(borrowed):
    report = borrowed("small")
    for layer in (2, 5):
        box(report, layer).uncheck()
    report.settle()
    assert chosen(report) == 0
    box(report, 5).check()
    report.settle()
    assert chosen(report) == 0


def test_a_chosen_layer_that_is_hidden_gives_way_to_the_least_smooth_that_is_shown(borrowed):
    report = borrowed("small")
    box(report, 5).uncheck()
    report.settle()
    assert chosen(report) == 2
    assert report.find('.chosen-layer option[value="5"]').is_disabled()
    box(report, 5).check()
    report.settle()
    assert chosen(report) == 5


def test_layers_of_one_measurement_are_chosen_apart_from_those_of_another(borrowed):
    report = borrowed("two maps")
    report.find('#answer-table tbody[data-map="residual"][data-layer="0"] button.choose').click()
    report.settle()
    choices = report.find(".closer .chosen-layer").evaluate_all("all => all.map(select => select.value)")
    assert choices == ["5", "0"]
