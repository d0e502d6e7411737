"""Writes PDF files for tests: text at given positions in standard fonts, and bookmarks."""

from __future__ import annotations

from dataclasses import dataclass, field

FONTS = {"F1": "Helvetica", "F2": "Helvetica-Bold", "F3": "Courier"}
PAGE_HEIGHT = 792


def escaped(text: str) -> bytes:
    return text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)").encode("cp1252")


@dataclass
class PdfWriter:
    """A file whose text is placed by `text`, or below the last text by `line`."""

    pages: list[list[bytes]] = field(default_factory=lambda: [[]])
    bookmarks: list[tuple[int, str, int]] = field(default_factory=list)
    y: float = 720
    title: str = ""

    def page(self) -> None:
        """Start a page."""
        self.pages.append([])
        self.y = 720

    def text(self, x: float, y: float, text: str, font: str = "F1", size: float = 10) -> None:
        """Place a text."""
        self.pages[-1].append(b"BT /%s %g Tf 1 0 0 1 %g %g Tm (%s) Tj ET" % (font.encode(), size, x, y, escaped(text)))

    def line(self, text: str, font: str = "F1", size: float = 10, x: float = 72, gap: float = 0) -> None:
        """Place a line below the last line, with a gap in between. If the page is full, start another page."""
        if self.y - gap < 80:
            self.page()
            gap = 0
        self.y -= gap + size * 1.2
        self.text(x, self.y, text, font, size)

    def heading(self, text: str, size: float, level: int = 0) -> None:
        """Place a bold line with a gap above it; with a level, a bookmark leads to it."""
        if self.y < 120:
            self.page()
        self.line(text, "F2", size, gap=12)
        if level:
            self.bookmarks.append((level, text, len(self.pages)))

    def paragraph(self, text: str, width: int = 80, x: float = 72, gap: float = 8) -> None:
        """Place a paragraph as lines of about `width` characters."""
        line, first = "", True
        for word in [*text.split(), ""]:
            if line and (not word or len(line) + len(word) >= width):
                self.line(line, x=x, gap=gap if first else 0)
                line, first = "", False
            line = f"{line} {word}".strip()

    def written(self) -> bytes:
        """The bytes of the file."""
        objects: list[bytes] = [b"", b""]
        fonts = []
        for short, name in FONTS.items():
            objects.append(
                b"<< /Type /Font /Subtype /Type1 /Encoding /WinAnsiEncoding /BaseFont /%s >>" % name.encode()
            )
            fonts.append(b"/%s %d 0 R" % (short.encode(), len(objects)))
        kids = []
        for page in self.pages:
            content = b"\n".join(page)
            objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content))
            about = b"/Parent 2 0 R /MediaBox [0 0 612 %d] /Resources << /Font << %s >> >>" % (
                PAGE_HEIGHT,
                b" ".join(fonts),
            )
            objects.append(b"<< /Type /Page %s /Contents %d 0 R >>" % (about, len(objects)))
            kids.append(len(objects))
        outline = self._outline(objects, kids) if self.bookmarks else b""
        objects[0] = b"<< /Type /Catalog /Pages 2 0 R %s >>" % outline
        objects[1] = b"<< /Type /Pages /Kids [%s] /Count %d >>" % (
            b" ".join(b"%d 0 R" % kid for kid in kids),
            len(kids),
        )
        info = b""
        if self.title:
            objects.append(b"<< /Title (%s) >>" % escaped(self.title))
            info = b"/Info %d 0 R" % len(objects)
        return file_of(objects, info)

    def _outline(self, objects: list[bytes], kids: list[int]) -> bytes:
        root = len(objects) + 1
        objects.append(b"")
        first = len(objects) + 1
        parents: list[int] = [root]
        entries: list[dict[str, int]] = []
        for place, (level, _, _) in enumerate(self.bookmarks):
            parents = parents[:level]
            siblings = [other for other, entry in enumerate(entries) if entry["parent"] == parents[-1]]
            entries.append({"parent": parents[-1]})
            if siblings:
                entries[siblings[-1]]["next"] = first + place
                entries[place]["prev"] = first + siblings[-1]
            parents.append(first + place)
        for place, (_, title, page) in enumerate(self.bookmarks):
            children = [first + other for other, entry in enumerate(entries) if entry["parent"] == first + place]
            links = b"".join(
                b" /%s %d 0 R" % (name.capitalize().encode(), number) for name, number in entries[place].items()
            )
            if children:
                links += b" /First %d 0 R /Last %d 0 R /Count %d" % (children[0], children[-1], len(children))
            objects.append(b"<< /Title (%s)%s /Dest [%d 0 R /Fit] >>" % (escaped(title), links, kids[page - 1]))
        top = [first + place for place, entry in enumerate(entries) if entry["parent"] == root]
        objects[root - 1] = b"<< /Type /Outlines /First %d 0 R /Last %d 0 R >>" % (top[0], top[-1])
        return b"/Outlines %d 0 R" % root


def file_of(objects: list[bytes], trailer: bytes = b"") -> bytes:
    """The file of these objects; the first one is the catalog."""
    data, places = b"%PDF-1.4\n", []
    for number, written in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, written)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    start = len(data)
    data += b"xref\n0 %d\n0000000000 65535 f \n%s" % (len(objects) + 1, table)
    return data + b"trailer << /Size %d /Root 1 0 R %s >>\nstartxref\n%d\n%%%%EOF\n" % (
        len(objects) + 1,
        trailer,
        start,
    )
