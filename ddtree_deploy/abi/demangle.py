"""Readable C++ names. Follows the Itanium C++ ABI, section 5.1 (https://itanium-cxx-abi.github.io/cxx-abi/abi.html).

Covers what torch's and CUDA's interfaces use: nested names, templates, substitutions, function types, operators and
literals. Expressions and other rarities are not attempted: such a name is returned as it is, never guessed.
"""

from __future__ import annotations

import re
from typing import List, Optional, Tuple

_BUILTIN = {
    "v": "void", "w": "wchar_t", "b": "bool", "c": "char", "a": "signed char", "h": "unsigned char", "s": "short",
    "t": "unsigned short", "i": "int", "j": "unsigned int", "l": "long", "m": "unsigned long", "x": "long long",
    "y": "unsigned long long", "n": "__int128", "o": "unsigned __int128", "f": "float", "d": "double",
    "e": "long double", "g": "__float128", "z": "...",
}  # fmt: skip
_STANDARD = {
    "St": "std", "Sa": "std::allocator", "Sb": "std::basic_string", "Ss": "std::string", "Si": "std::istream",
    "So": "std::ostream", "Sd": "std::iostream",
}  # fmt: skip
_OPERATORS = {
    "nw": "new", "na": "new[]", "dl": "delete", "da": "delete[]", "ng": "-", "ad": "&", "de": "*", "co": "~", "pl": "+",
    "mi": "-", "ml": "*", "dv": "/", "rm": "%", "an": "&", "or": "|", "eo": "^", "aS": "=", "pL": "+=", "mI": "-=",
    "mL": "*=", "dV": "/=", "rM": "%=", "aN": "&=", "oR": "|=", "eO": "^=", "ls": "<<", "rs": ">>", "lS": "<<=",
    "rS": ">>=", "eq": "==", "ne": "!=", "lt": "<", "gt": ">", "le": "<=", "ge": ">=", "ss": "<=>", "nt": "!",
    "aa": "&&", "oo": "||", "pp": "++", "mm": "--", "cm": ",", "pt": "->", "cl": "()", "ix": "[]",
}  # fmt: skip
_LITERAL_SUFFIX = {"j": "u", "l": "l", "m": "ul", "x": "ll", "y": "ull"}
_SPECIAL = {
    "TV": "vtable for ", "TT": "VTT for ", "TI": "typeinfo for ", "TS": "typeinfo name for ",
    "GV": "guard variable for ", "TH": "TLS init function for ", "TW": "TLS wrapper function for ",
}  # fmt: skip
_STRING = "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >"


class _Unsure(Exception):
    """The name uses a part of the grammar that is not covered."""


def demangle(name: str) -> str:
    """``_ZN3c104cuda9SetDeviceEi`` -> ``c10::cuda::SetDevice(int)``; a name that is not certain comes back as it is."""
    if not name.startswith("_Z"):
        return name
    try:
        parser = _Parser(name)
        text = parser.encoding()
        return text.replace(_STRING, "std::string") if parser.done() else name
    except (_Unsure, IndexError, RecursionError, KeyError):
        return name


def uses_old_string(name: str) -> bool:
    """Whether a mangled name mentions std::string of the old C++ ABI (``Ss``); False where that is not certain."""
    if not name.startswith("_Z") or "S" not in name:
        return False
    parser = _Parser(name)
    try:
        parser.encoding()
    except (_Unsure, IndexError, RecursionError, KeyError):
        return False
    return parser.done() and parser.old_string


class _Parser:
    def __init__(self, name: str) -> None:
        self.text, self.at = name, 2
        self.old_string = False
        self.substitutions: List[str] = []
        self.arguments: List[str] = []

    def done(self) -> bool:
        rest = self.text[self.at :]
        return not rest or rest[0] in ".@"

    def peek(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def take(self, text: str) -> bool:
        if self.peek(text):
            self.at += len(text)
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.take(text):
            raise _Unsure(text)

    def keep(self, text: str) -> str:
        self.substitutions.append(text)
        return text

    # <encoding> and <name> -----------------------------------------------------------------------------------

    def encoding(self) -> str:
        special = _SPECIAL.get(self.text[self.at : self.at + 2])
        if special:
            self.at += 2
            return special + (self.name()[0] if special.startswith("guard") or "TLS" in special else self.type())
        name, templated, qualifiers = self.name()
        if self.done() or self.peek("E"):
            return name
        result = f"{self.type()} " if templated and not _is_special_member(name) else ""
        return f"{result}{name}({', '.join(self.parameters())}){qualifiers}"

    def parameters(self) -> List[str]:
        found = []
        while not self.done() and not self.peek("E"):
            found.append(self.type())
        return [] if found == ["void"] else found

    def name(self) -> Tuple[str, bool, str]:
        """(text, whether it ends in template arguments, qualifiers of a member function)."""
        if self.take("N"):
            return self.nested()
        if self.take("Z"):
            return self.local()
        if self.peek("S") and not self.peek("St"):
            text = self.substitution()
        else:
            text = self.unqualified("std::" if self.take("St") else "", None)
            if self.peek("I"):
                self.keep(text)
        if self.peek("I"):
            self.arguments, rendered = self.template_arguments()
            return text + rendered, True, ""
        return text, False, ""

    def local(self) -> Tuple[str, bool, str]:
        function = self.encoding()
        self.expect("E")
        if self.take("s"):
            name, templated = "string literal", False
        else:
            name, templated, _ = self.name()
        match = re.compile(r"_(\d|_\d+_)").match(self.text, self.at)
        if match:
            self.at = match.end()
        return f"{function}::{name}", templated, ""

    def nested(self) -> Tuple[str, bool, str]:
        qualifiers = ""
        for code, word in (("r", " restrict"), ("V", " volatile"), ("K", " const")):
            if self.take(code):
                qualifiers = word + qualifiers
        qualifiers += " &&" if self.take("O") else " &" if self.take("R") else ""
        text, templated, last = "", False, ""
        while not self.take("E"):
            if self.peek("I"):
                self.arguments, rendered = self.template_arguments()
                text, templated = text + rendered, True
            elif self.peek("S") and not text:
                text = self.substitution()
                last = text.rpartition("::")[2].partition("<")[0]
                continue
            elif self.peek("T") and not text:
                text = self.template_parameter()
            else:
                part = self.unqualified("", last)
                last, templated = part, False
                text = f"{text}::{part}" if text else part
            if not self.peek("E"):
                self.keep(text)
        return text, templated, qualifiers

    def unqualified(self, prefix: str, enclosing: Optional[str]) -> str:
        if self.text[self.at].isdigit():
            text = self.source_name()
        elif self.peek("C") and enclosing:
            if self.text[self.at + 1] not in "123":
                raise _Unsure("inheriting constructor")
            self.at += 2
            text = enclosing.partition("[")[0]
        elif self.peek("D") and self.text[self.at + 1] in "0123" and enclosing:
            self.at += 2
            text = "~" + enclosing.partition("[")[0]
        elif self.take("L"):
            text = self.source_name()
        elif self.take("Ut"):
            text = f"{{unnamed type#{self.count()}}}"
        elif self.take("Ul"):
            parameters = self.parameters()
            self.expect("E")
            text = f"{{lambda({', '.join(parameters)})#{self.count()}}}"
        elif self.take("cv"):
            text = f"operator {self.type()}"
        elif self.take("li"):
            text = f'operator""{self.source_name()}'
        else:
            code = self.text[self.at : self.at + 2]
            self.at += 2
            word = _OPERATORS[code]
            text = f"operator{' ' if word[0].isalpha() else ''}{word}"
        while self.take("B"):
            text += f"[abi:{self.source_name()}]"
        return prefix + text

    def count(self) -> int:
        match = re.compile(r"(\d*)_").match(self.text, self.at)
        if not match:
            raise _Unsure("number")
        self.at = match.end()
        return int(match.group(1)) + 2 if match.group(1) else 1

    def source_name(self) -> str:
        match = re.compile(r"\d+").match(self.text, self.at)
        if not match:
            raise _Unsure("name")
        start = match.end()
        self.at = start + int(match.group())
        text = self.text[start : self.at]
        if len(text) != int(match.group()):
            raise _Unsure("name")
        return "(anonymous namespace)" if text.startswith("_GLOBAL__N") else text

    # <substitution>, <template-args> -------------------------------------------------------------------------

    def substitution(self) -> str:
        short = _STANDARD.get(self.text[self.at : self.at + 2])
        if short:
            self.old_string = self.old_string or short == "std::string"
            self.at += 2
            return short
        match = re.compile(r"S([0-9A-Z]*)_").match(self.text, self.at)
        if not match:
            raise _Unsure("substitution")
        self.at = match.end()
        return self.substitutions[int(match.group(1), 36) + 1 if match.group(1) else 0]

    def template_parameter(self) -> str:
        match = re.compile(r"T(\d*)_").match(self.text, self.at)
        if not match:
            raise _Unsure("template parameter")
        self.at = match.end()
        return self.arguments[int(match.group(1)) + 1 if match.group(1) else 0]

    def template_arguments(self) -> Tuple[List[str], str]:
        space = " " if re.search(r"(ls|lt|lS)$", self.text[: self.at]) else ""  # operator<< <int>
        self.expect("I")
        arguments = self.argument_list()
        shown = ", ".join(argument for argument in arguments if argument)
        return arguments, f"{space}<{shown}{' ' if shown.endswith('>') else ''}>"

    def argument_list(self) -> List[str]:
        arguments = []
        while not self.take("E"):
            if self.take("J"):
                pack = self.argument_list()
                arguments.append(", ".join(pack))
            elif self.take("L"):
                arguments.append(self.literal())
            elif self.peek("X"):
                raise _Unsure("expression")
            else:
                arguments.append(self.type())
        return arguments

    def literal(self) -> str:
        if self.take("_Z"):
            text = self.encoding()
            self.expect("E")
            return f"&{text}" if text.endswith(")") else text
        code = self.text[self.at]
        kind = self.type()
        match = re.compile(r"(n?)(\d+)E").match(self.text, self.at)
        if not match:
            raise _Unsure("literal")
        self.at = match.end()
        value = ("-" if match.group(1) else "") + match.group(2)
        if code == "b":
            return {"0": "false", "1": "true"}[value]
        if code == "i":
            return value
        return value + _LITERAL_SUFFIX[code] if code in _LITERAL_SUFFIX else f"({kind}){value}"

    # <type> --------------------------------------------------------------------------------------------------

    def type(self) -> str:
        """A type; template arguments inside it are not those that T_ of the whole name refers to."""
        outer = self.arguments
        try:
            return self.any_type()
        finally:
            self.arguments = outer

    def any_type(self) -> str:
        code = self.text[self.at]
        if code in _BUILTIN:
            self.at += 1
            return _BUILTIN[code]
        if code in "rVK":
            words = {"r": " restrict", "V": " volatile", "K": " const"}
            qualifiers = ""
            while self.text[self.at] in "rVK":
                qualifiers = words[self.text[self.at]] + qualifiers
                self.at += 1
            return self.keep(_apply(self.type(), qualifiers))
        if code in "PRO":
            self.at += 1
            return self.keep(_apply(self.type(), {"P": "*", "R": "&", "O": "&&"}[code]))
        if code in "FAM":
            return self.keep({"F": self.function, "A": self.array, "M": self.member}[code]())
        if code == "D":
            return self.extended()
        if code == "T":
            text = self.keep(self.template_parameter())
        elif code == "S" and not self.peek("St"):
            text = self.substitution()
        else:
            return self.keep(self.name()[0])
        if self.peek("I"):
            text = self.keep(text + self.template_arguments()[1])
        return text

    def extended(self) -> str:
        if self.take("Dp"):
            text = self.type()
            if text.lstrip("&*") == "":
                raise _Unsure("empty parameter pack")
            return text
        words = {
            "Dn": "decltype(nullptr)",
            "Da": "auto",
            "Ds": "char16_t",
            "Di": "char32_t",
            "Du": "char8_t",
            "Dh": "half",
        }
        code = self.text[self.at : self.at + 2]
        if code == "Do":  # noexcept function type
            self.at += 2
            return self.keep(self.function() + " noexcept")
        if code not in words:
            raise _Unsure(code)
        self.at += 2
        return words[code]

    def function(self) -> str:
        self.expect("F")
        self.take("Y")
        result = self.type()
        parameters = self.parameters()
        self.expect("E")
        return f"{result} ({', '.join(parameters)})"

    def array(self) -> str:
        match = re.compile(r"A(\d+)_").match(self.text, self.at)
        if not match:
            raise _Unsure("array")
        self.at = match.end()
        return f"{self.type()} [{match.group(1)}]"

    def member(self) -> str:
        self.expect("M")
        owner = self.type()
        return _apply(self.type(), f"{owner}::*")


def _apply(kind: str, modifier: str) -> str:
    """``int`` and ``*`` -> ``int*``; pointers to functions and arrays go inside: ``void (*)(int)``."""
    match = re.search(r" (?=\([^()]*(?:\([^()]*\)[^()]*)*\)( const)?( noexcept)?$|\[\d+\]$)", kind)
    if match and kind[match.start() + 1] in "([" and not modifier.startswith(" "):
        inner, rest = kind[: match.start()], kind[match.start() + 1 :]
        if rest.startswith(("(*", "(&")):
            close = rest.index(")")
            return f"{inner} {rest[:close]}{modifier}{rest[close:]}"
        return f"{inner} ({modifier}){'' if rest.startswith('(') else ' '}{rest}"
    if modifier.endswith("&") and kind.endswith("&"):  # reference collapsing
        return kind.rstrip("&") + ("&&" if modifier == "&&" and kind.endswith("&&") else "&")
    return kind + modifier


def _is_special_member(name: str) -> bool:
    """Constructors, destructors and conversions carry no return type even where they are templates."""
    base = re.sub(r"<.*>$", "", name)
    parts = base.split("::")
    return (len(parts) > 1 and parts[-1].lstrip("~") == parts[-2].partition("<")[0]) or "::operator " in base
