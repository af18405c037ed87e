"""Write scripts that complete commands and options in bash, zsh and fish, from the parser of the commands."""

import argparse
import shlex
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class CommandWords:
    """What can be completed after a command.

    Attributes
    ----------
    name : name of the command.
    text : its description.
    options : {option: description}.
    values : {option: values}, for options with a public list of values.
    words : values of the command's own arguments.
    """

    name: str
    text: str
    options: dict[str, str]
    values: dict[str, tuple[str, ...]]
    words: tuple[str, ...]


def list_commands(parser: argparse.ArgumentParser) -> list[CommandWords]:
    """List the commands of a parser with their options."""
    commands = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    texts = {action.dest: action.help or "" for action in commands._choices_actions}
    return [_list_words(name, texts[name], sub) for name, sub in commands.choices.items()]


def _list_words(name: str, text: str, parser: argparse.ArgumentParser) -> CommandWords:
    options: dict[str, str] = {}
    values: dict[str, tuple[str, ...]] = {}
    words: tuple[str, ...] = ()
    for action in parser._actions:
        choices = tuple(map(str, action.choices or ()))
        if not action.option_strings:
            words += choices
        for option in action.option_strings:
            options[option] = _expand_help(parser, action)
            if choices:
                values[option] = choices
    return CommandWords(name, text, options, values, words)


def _expand_help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    return " ".join(text.split())


def write_completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script for a shell: "bash", "zsh" or "fish"."""
    return _WRITERS[shell](parser.prog, list_commands(parser))


def _write_bash(prog: str, commands: list[CommandWords]) -> str:
    names = " ".join(command.name for command in commands)
    cases = []
    for command in commands:
        cases += [
            f'        {command.name},{option}) COMPREPLY=($(compgen -W "{" ".join(values)}" -- "$word")); return ;;'
            for option, values in command.values.items()
        ]
    words = [
        f'        {command.name}) options="{" ".join(command.options)}" words="{" ".join(command.words)}" ;;'
        for command in commands
    ]
    return "\n".join(
        [
            f"# Completion of {prog} for bash. Use it with: source <({prog} completion bash)",
            f"_{prog}() {{",
            '    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" options="" words=""',
            '    if [ "$COMP_CWORD" -eq 1 ]; then',
            f'        COMPREPLY=($(compgen -W "{names} --help --version" -- "$word")); return',
            "    fi",
            '    case "${COMP_WORDS[1]},$before" in',
            *cases,
            "    esac",
            '    case "${COMP_WORDS[1]}" in',
            *words,
            "    esac",
            '    if [[ "$word" == -* ]]; then',
            '        COMPREPLY=($(compgen -W "$options" -- "$word"))',
            "    else",
            '        COMPREPLY=($(compgen -W "$words" -- "$word") $(compgen -f -- "$word"))',
            "    fi",
            "}",
            f"complete -o filenames -F _{prog} {prog}",
            "",
        ]
    )


def _write_zsh(prog: str, commands: list[CommandWords]) -> str:
    def described(name: str, text: str) -> str:
        return shlex.quote(f"{name}:{text.replace(':', ';')}")

    lines = [
        f"#compdef {prog}",
        f"# Completion of {prog} for zsh. Use it with: source <({prog} completion zsh)",
        f"_{prog}() {{",
        "    local -a commands options",
        f"    commands=({' '.join(described(c.name, c.text) for c in commands)})",
        "    if (( CURRENT == 2 )); then",
        "        _describe command commands; return",
        "    fi",
        '    case "${words[2]},${words[CURRENT-1]}" in',
    ]
    for command in commands:
        for option, values in command.values.items():
            lines.append(f"        {command.name},{option}) compadd {' '.join(map(shlex.quote, values))}; return ;;")
    lines += ["    esac", '    case "${words[2]}" in']
    for command in commands:
        options = " ".join(described(option, text) for option, text in command.options.items())
        words = f" compadd {' '.join(map(shlex.quote, command.words))};" if command.words else ""
        lines.append(f"        {command.name}) options=({options});{words} ;;")
    lines += [
        "    esac",
        '    if [[ "${words[CURRENT]}" == -* ]]; then',
        "        _describe option options",
        "    else",
        "        _files",
        "    fi",
        "}",
        f"compdef _{prog} {prog}",
        "",
    ]
    return "\n".join(lines)


def _write_fish(prog: str, commands: list[CommandWords]) -> str:
    lines = [f"# Completion of {prog} for fish. Use it with: {prog} completion fish | source"]
    for command in commands:
        lines.append(f"complete -c {prog} -n __fish_use_subcommand -a {command.name} -d {_quote_fish(command.text)}")
        condition = f"-n '__fish_seen_subcommand_from {command.name}'"
        for option, text in command.options.items():
            kind = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            values = f" -x -a {_quote_fish(' '.join(command.values[option]))}" if option in command.values else ""
            lines.append(f"complete -c {prog} {condition} {kind}{values} -d {_quote_fish(text)}")
        if command.words:
            lines.append(f"complete -c {prog} {condition} -a {_quote_fish(' '.join(command.words))}")
    return "\n".join([*lines, ""])


def _quote_fish(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


_WRITERS: dict[str, Callable[[str, list[CommandWords]], str]] = {
    "bash": _write_bash,
    "zsh": _write_zsh,
    "fish": _write_fish,
}
SHELLS = tuple(_WRITERS)
