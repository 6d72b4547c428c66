"""Wrong arguments are one line that says what was expected, what was found and what to do, and the exit code 2."""

import os
import re
import signal
import subprocess
import typing
from pathlib import Path

import pytest
from tests import forked

from vergence import advice, data, decide, densities, images, learn, linear, mixtures, report, tables
from vergence.cli import density
from vergence.cli.commands import COMMANDS, in_one_line, main


def test_messages_of_the_library_name_arguments_which_the_command_line_turns_into_options():
    rooms = (advice, data, decide, densities, images, learn, linear, mixtures, report, tables)
    for file in (path for room in rooms for path in Path(room.__path__[0]).rglob("*.py")):
        messages = re.sub(r'(?s:""".*?""")|#.*|(vergence|torchrun) .*|, and --nnodes ', "", file.read_text(encoding="utf-8"))
        assert not re.findall(r"(?<![\w-])--[a-z].*", messages), file


def test_a_reader_that_leaves_ends_the_command_without_a_message():
    for arguments in (["train", "--help"], ["--version"]):
        read, write = os.pipe()
        os.close(read)
        ended = subprocess.run([forked.PROGRAM, *arguments], stdout=write, stderr=subprocess.PIPE, text=True)
        os.close(write)
        assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("train x --lr abc --out y", "expected a number for --lr, found 'abc'; vergence train --help lists the options"),
        ("train x --epochs 1.5 --out y", "expected a whole number for --epochs, found '1.5'; vergence train --help"),
        ("score x y --fdr a --out y.csv", "expected a number for --fdr, found 'a'; vergence score --help"),
        ("train x --device foo --out y", "expected --device to be auto, cpu or cuda, found 'foo'; vergence train --help"),
        ("train x --lr", "expected a value after --lr, found none; vergence train --help"),
        ("train x --batchsize 4 --out y", "found unknown arguments: --batchsize 4 (did you mean --batch-size?)"),
        ("train x --epochs 3 4 --out y", "found unknown arguments: 4; vergence train --help"),
        ("train x --epoch 4 --out y", "found unknown arguments: --epoch 4 (did you mean --epochs?); vergence train --help"),
        ("scor x", "expected a command, found 'scor': there are check, fetch, demo,"),
        (
            "density fitt x --out y",
            "expected a command, found 'fitt': there are fit, predict, sample, score, importance; did you mean 'fit'?",
        ),
        ("evaluate", "expected RUN for vergence evaluate, found none; vergence evaluate --help"),
        ("evaluate --foo", "found unknown arguments: --foo; vergence evaluate --help"),
        ("density predict --fi=x", "found unknown arguments: --fi=x; vergence density predict --help"),
        ("calibrate --frd 1 a b", "found unknown arguments: --frd (did you mean --fdr?); vergence calibrate --help"),
        ("pairs fti x", "expected a command, found 'fti': there are fit; did you mean 'fit'?"),
        ("train", "name the data: vergence train DATA"),
        ("train --resume", "name the run folder to continue: vergence train --resume RUN"),
        ("density fit", "expected PAIRS for vergence density fit, found none; vergence density fit --help"),
        ("density", "expected a command after vergence density, found none: there are fit, predict"),
    ],
)
def test_wrong_arguments_are_one_line(arguments, words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments.split())
    said = capsys.readouterr()
    assert stop.value.code == 2 and said.err.startswith(f"error: {words}") and said.err.count("\n") == 1 and not said.out


EVERY = {name: kind for name, kind in COMMANDS.items() if name != "density"}
EVERY |= {f"density {name}": kind for name, kind in density.VERBS.items()}


@pytest.mark.parametrize("command", EVERY)
def test_a_wrong_option_of_every_command_is_one_line_that_names_it(command, capsys):
    hints = typing.get_type_hints(EVERY[command], include_extras=True).values()
    needed = [re.search(r"Literal\['(\w+)'", text) for hint in hints if "Positional" in (text := repr(hint))]
    files = [found[1] if found else "x" for found in needed]
    with pytest.raises(SystemExit) as stop:
        main([*command.split(), *files, "--no-such-option", "3"])
    said = capsys.readouterr()
    assert stop.value.code == 2 and said.err.count("\n") == 1 and not said.out
    assert said.err.startswith("error: found unknown arguments: --no-such-option 3")
    assert said.err.endswith(f"; vergence {command} --help lists the options\n")


def test_what_is_not_known_is_said_as_the_parser_says_it():
    assert in_one_line("╭─ A title ─╮\n│ Something new   │\n│ is wrong. │\n╰───╯", ["train"]) == (
        "Something new is wrong.; vergence train --help lists the options"
    )
