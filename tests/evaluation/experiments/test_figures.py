"""Figures that can be read, and are the same bytes every time."""

import re
from dataclasses import replace

import pytest

from nbmf.evaluation.experiments import figures
from nbmf.evaluation.experiments.figures import all_pictures
from nbmf.evaluation.experiments.paper import kept_portrait


def test_pictures_are_files_with_readable_words(results, tmp_path):
    portrait = kept_portrait(results)
    drawn = all_pictures(results, replace(portrait, taken=[name * 6 for name in portrait.taken]))
    assert len(drawn) == 6
    for picture in drawn:
        made = []
        draw = lambda width, picture=picture, made=made: made.append(picture.draw(width)) or made[-1]  # noqa: E731
        replace(picture, draw=draw).save(tmp_path)
        replace(picture, draw=draw).save_for_screens(tmp_path)
        for figure in made:
            words = [text for text in figure.findobj(lambda artist: hasattr(artist, "get_fontsize")) if text.get_text()]
            assert len(words) > 5
            assert min(text.get_fontsize() for text in words) >= 6.5
            inked, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
            assert min(inked.x0, inked.y0, width - inked.x1, height - inked.y1) >= 0, picture.name
        assert (tmp_path / f"{picture.name}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / f"{picture.name}.pdf").read_bytes().startswith(b"%PDF")
        sizes = []
        for kind in ("", "_wide"):  # for phones and for wide screens, in the colours of either scheme
            drawing = (tmp_path / f"{picture.name}{kind}.svg").read_text()
            assert "prefers-color-scheme:dark" in drawing
            assert "currentColor" in drawing
            assert "#000000" not in drawing
            assert "fill: #ffffff" not in drawing  # no white ground
            sizes.append(float(re.search(r'width="([\d.]+)pt"', drawing)[1]))
        assert sizes[1] == pytest.approx(2 * sizes[0])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    drawn[0].save(tmp_path)
    drawn[0].save_for_screens(tmp_path)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_lines_differ_by_more_than_colour():
    for looks in (list(figures.LOOKS.values()), list(figures._CURVES)):
        for part in zip(*(look.values() for look in looks), strict=True):
            assert len(set(part)) == len(looks)


def test_the_histogram_is_the_share_of_counts_that_large(results):
    (histogram,) = [picture for picture in all_pictures(results, None) if picture.name == "histogram"]
    line = histogram.draw(3.4).axes[0].lines[0]
    for y, share in zip(*line.get_data(), strict=True):
        assert share == pytest.approx(results.study.share_at_least(y))
    assert line.get_drawstyle() == "steps-pre"  # the share is that of all y above the smaller count
