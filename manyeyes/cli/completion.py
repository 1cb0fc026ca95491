"""`manyeyes completion`: tab completion of commands, flags, settings and choices, read off the packaged help."""

import re
from collections.abc import Iterator
from contextlib import suppress
from shlex import split

from manyeyes.cli import COMMANDS
from manyeyes.cli.packaged_help import all_help
from manyeyes.cli.parser import Parser

FLAG = re.compile(r"(?:^ +|\[)(--[a-z][\w-]*)", re.MULTILINE)
CHOICES = re.compile(r"^  \{([\w,]+)\}", re.MULTILINE)  # of a positional argument
SETTING = re.compile(r"^  ([a-z_][\w.]*)=(\S+)", re.MULTILINE)  # a line of help: name=default, or name=[choice|choice]
SETTINGS_COMMANDS = ("run", "estimate", "flair", "fedper", "flower init", "flower split")  # that take those of `run`
GLOBAL_FLAGS = ("--help", "--version")
SCRIPTS = {
    "bash": """_manyeyes() {
    local IFS=$'\\n'
    COMPREPLY=($(manyeyes completion bash --line "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
}
complete -o default -o nospace -F _manyeyes manyeyes
""",
    "zsh": """#compdef manyeyes
_manyeyes() {
    local -a candidates
    candidates=("${(@f)$(manyeyes completion zsh --line "$LBUFFER" 2>/dev/null)}")
    if [[ -n "$candidates" ]]; then
        compadd -Q -S '' -a candidates
    else
        compset -P '*='
        _files
    fi
}
compdef _manyeyes manyeyes
""",
    "fish": """function __manyeyes_complete
    set -l candidates (manyeyes completion fish --line (commandline -cp) 2>/dev/null)
    if test -n "$candidates"
        printf '%s\\n' $candidates
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c manyeyes -f -a '(__manyeyes_complete)'
""",
}
DESCRIPTION = """Print a script for tab completion of commands, flags, setting names and choices. To use it in new shells:

  bash   manyeyes completion bash >> ~/.bashrc
  zsh    manyeyes completion zsh >> ~/.zshrc      after compinit
  fish   manyeyes completion fish > ~/.config/fish/completions/manyeyes.fish"""


def main(argv: list[str]) -> int:
    example = "manyeyes completion zsh >> ~/.zshrc"
    parser = Parser("manyeyes completion", description=DESCRIPTION, example=example)
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="the shell that reads the script")
    parser.add_argument("--line", help="print what can follow this command line instead, as the script asks")
    args = parser.parse_args(argv)
    print(SCRIPTS[args.shell] if args.line is None else "\n".join(complete(args.line, args.shell)))
    return 0


def complete(line: str, shell: str = "fish") -> list[str]:
    """Return what can stand in place of the last word of a command line, in the form that a shell expects."""
    *arguments, current = _split(line)[1:] or [""]
    matches = sorted({candidate for candidate in candidates(arguments, current) if candidate.startswith(current)})
    if shell != "fish":  # which adds a space itself
        matches = [match if match.endswith("=") else f"{match} " for match in matches]
    done = max(current.rfind("="), current.rfind(":")) + 1 if shell == "bash" else 0  # where bash begins a new word
    return [match[done:] for match in matches]


def _split(line: str) -> list[str]:
    """Return the arguments of a command line, the last one empty after a space; quotes may be open."""
    for closing in ("", "'", '"'):
        with suppress(ValueError):
            return [*split(line + closing), *([""] if not closing and line[-1:].isspace() else [])]
    return line.split()


def candidates(arguments: list[str], current: str) -> Iterator[str]:
    """Yield what can follow the arguments after `manyeyes`; `current` is the beginning of the next word."""
    if not arguments:
        yield from (*COMMANDS, *GLOBAL_FLAGS)
        return
    path = arguments[0]
    for word in arguments[1:]:
        path = f"{path} {word}" if f"{path} {word}" in all_help() and "=" not in word else path
    text = all_help().get(path, "")
    if current.startswith("-"):
        yield from ("--help", *FLAG.findall(text))
        return
    yield from (choice for choices in CHOICES.findall(text) for choice in choices.split(","))
    settings = {} if path == "run" else dict(SETTING.findall(text))
    settings |= _run_settings(arguments) if path in SETTINGS_COMMANDS else {}
    name, equals, value = current.partition("=")
    if not equals:
        yield from (f"{setting}=" for setting in settings)
    elif name in settings:
        start = name + equals + value[: max(value.rfind(","), value.rfind("[")) + 1]  # of a list or a sweep
        yield from (start + choice for choice in _choices(settings[name]))


def _run_settings(arguments: list[str]) -> dict[str, str]:
    """Return the settings of `manyeyes run`, with the options of what is chosen, and the text after each name."""
    run_help = all_help()["run"]
    groups, _, rest = run_help.partition("Groups, with")[2].partition("Settings of the run:")
    settings = dict(SETTING.findall(groups)) | dict(SETTING.findall(rest.partition("\n\ndata=")[0]))
    defaults = re.findall(r"^  (\w+)=\S+   \((\w+)\)$", groups, re.MULTILINE)
    for override in (*("=".join(pair) for pair in defaults), *arguments):
        settings |= dict(SETTING.findall(all_help().get(f"run {override}", "")))
    return settings


def _choices(text: str) -> list[str]:
    """Return the values that the help of a setting names: choices of a group, or those of a yes-or-no setting."""
    if text in ("true", "false"):
        return ["true", "false"]
    return text.strip("[]").split("|") if "|" in text else []
