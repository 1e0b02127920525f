"""An HTML page as a tree that tests can ask; refuses elements that are not closed in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "link", "input"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    children: list[Element | str] = field(default_factory=list)

    def all(self, tag: str | None = None, **attributes: str) -> list[Element]:
        """All elements inside with this tag and these attributes (``css="x"``: has the class x), in order."""
        wanted = {name: value for name, value in attributes.items() if name != "css"}
        css = attributes.get("css")
        return [
            element
            for element in self.inside()
            if (tag is None or element.tag == tag)
            and all(element.attributes.get(name) == value for name, value in wanted.items())
            and (css is None or css in element.attributes.get("class", "").split())
        ]

    def one(self, tag: str | None = None, **attributes: str) -> Element:
        found = self.all(tag, **attributes)
        assert len(found) == 1, f"{len(found)} elements {tag} {attributes}"
        return found[0]

    def inside(self) -> Iterator[Element]:
        for child in self.children:
            if isinstance(child, Element):
                yield child
                yield from child.inside()

    @property
    def text(self) -> str:
        pieces = (child if isinstance(child, str) else f" {child.text} " for child in self.children)
        return " ".join("".join(pieces).split())


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open = [Element("#document", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parse(html: str) -> Element:
    builder = _Builder()
    builder.feed(html)
    builder.close()
    assert len(builder.open) == 1, f"not closed: {[element.tag for element in builder.open[1:]]}"
    return builder.open[0]
