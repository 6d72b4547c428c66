"""Tiles of blood cells: which are odd."""

import csv

import numpy as np
import pytest
from experiments.photographs import ORDINARY, PLATELET, WHITE_CELL, label, ordinary_tiles
from PIL import Image


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        (("RBC", 0, 0, 64, 64), ORDINARY),
        (("WBC", 0, 0, 64, 64), WHITE_CELL),
        (("WBC", 32, 0, 200, 200), WHITE_CELL),  # half of the tile
        (("WBC", 33, 0, 200, 200), None),
        (("WBC", 64, 0, 200, 200), ORDINARY),  # next to it
        (("Platelets", 44, 0, 84, 40), PLATELET),  # half of the platelet
        (("Platelets", 45, 0, 85, 40), None),
        (("Platelets", -20, 70, 20, 110), ORDINARY),
    ],
)
def test_a_tile_is_odd_by_its_share_of_a_box(box, expected):
    assert label(0, 0, [box]) == expected


def test_an_odd_tile_stays_odd_whatever_else_it_touches():
    white, near = ("WBC", 0, 0, 64, 64), ("Platelets", 60, 0, 100, 40)
    assert label(0, 0, [white, near]) == label(0, 0, [near, white]) == WHITE_CELL
    inside = ("Platelets", 10, 10, 50, 50)
    assert label(0, 0, [white, inside]) == PLATELET


def test_parts_keep_photographs_apart_and_train_on_ordinary_tiles(tmp_path):
    folder = tmp_path / "bccd"
    folder.mkdir()
    for name in ("a.png", "b.png"):
        Image.fromarray(np.zeros((64, 128, 3), np.uint8)).save(folder / name)
    with (folder / "boxes.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("file", "split", "label", "xmin", "ymin", "xmax", "ymax"))
        writer.writerows([(f"{name}.png", part, "WBC", 0, 0, 64, 64) for name, part in (("a", "val"), ("b", "test"))])
    found = ordinary_tiles(tmp_path)
    assert found["y_train"].tolist() == [ORDINARY] and found["y_test"].tolist() == [WHITE_CELL, ORDINARY]
