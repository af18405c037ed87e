"""Fixtures that several folders share."""

import shlex

import pytest


@pytest.fixture
def folder(tmp_path):
    """The folder that command lines run in; a module may have one of its own, with files in it."""
    return tmp_path


@pytest.fixture
def run(folder, monkeypatch, capsys):
    """Run a command line in the folder: exit code, standard output, standard error."""
    from dpscp.cli import main

    monkeypatch.chdir(folder)

    def call(line):
        capsys.readouterr()
        try:
            code = main(shlex.split(line))
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr()

    return call
