"""What columns are, on the command line of ``vergence density``: dates, declared columns, subjects, unknown categories."""

import numpy as np
from tests.cli.test_cli import refused

from vergence.cli.commands import main


def write(path, n, colors, start=0):
    r = np.random.default_rng(n)
    rows = [f"{start + i % 28 + 1:02d}/01/2024,{i % 12},{i % 5},{colors[i % len(colors)]},{r.normal():.3f}" for i in range(n)]
    path.write_text("\n".join(["when,subject,code,color,y", *rows]) + "\n")


def test_columns_are_declared_and_asked_about(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "t.csv", 120, ["red", "Red", "blue"])
    named = ["density", "fit", "t.csv", "--target", "y", "--model", "gaussian", "--holdout", "0"]
    main([*named, "--dates", "%d/%m/%Y", "--category", "code", "--number", "subject"])
    found = capsys.readouterr()
    assert "when (date, %d/%m/%Y" in found.err and "code (category, 5 values)" in found.err and "subject, " in found.err
    assert "note: subject has 12 values, 10 rows each: --groups subject?" in found.err
    assert "note: color has 'Red' and 'red', which differ by case or spaces alone: one value?" in found.err
    write(tmp_path / "new.csv", 20, ["red", "green"])
    main(["density", "predict", "density.safetensors", "new.csv", "--out", "p.csv"])
    assert "color is 'green' in 10 rows (first line 3), which the fit did not see: taken for a gap" in capsys.readouterr().err
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 21
    main(["density", "predict", "density.safetensors", "--if", "color=green"])
    found = capsys.readouterr()
    assert "color is 'green', which the fit did not see: taken for a gap" in found.err and found.out.startswith("y is ")
    for arguments, words in (
        (["predict", "density.safetensors", "new.csv", "--out", "q.csv", "--unknown", "refuse"], "found 'green'"),
        (["fit", "t.csv", "--target", "y", "--ordered", "color"], "numbers or dates in the column color of t.csv, found 'red'"),
        (["fit", "t.csv", "--target", "y", "--weights", "color"], "numbers or dates in the column color"),
    ):
        refused("density", *arguments, words=words)
