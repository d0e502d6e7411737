"""The fonts of a PDF. A font converts the codes in the PDF's strings to text and widths."""

from __future__ import annotations

import re
from typing import Any

from pypdf.generic._font import Font

_BOLD = re.compile(r"bold|black|heavy|demi|cmbx|cmb\d|cmssbx|ptmb|phvb|-bd\b", re.IGNORECASE)
_FIXED = re.compile(r"mono|courier|typewriter|consol|cmtt|cmsltt|menlo|pcr[rb]|fixed|txtt|\btt", re.IGNORECASE)
_FIXED_PITCH = 1
_FORCE_BOLD = 1 << 18
_BOLD_WEIGHT = 600


class PdfFont:
    """A font. `decode` returns the text of a string and its width in units of the font size."""

    def __init__(self, resource: Any) -> None:
        font = Font.from_font_resource(resource)
        self.name = str(font.name).rpartition("+")[2]
        flags = font.font_descriptor.flags
        flags = int(flags) if isinstance(flags, (int, float)) else 0
        self.is_bold = bool(_BOLD.search(self.name)) or bool(flags & _FORCE_BOLD) or _weight(font) >= _BOLD_WEIGHT
        self.is_fixed = bool(_FIXED.search(self.name)) or bool(flags & _FIXED_PITCH)
        default = _number(font.character_widths.get("default"), 500)
        widths = {key: _number(width, default) for key, width in font.character_widths.items() if len(key) == 1}
        widths.setdefault(font.space_char, _number(font.space_width, 250))
        # If a font draws its own glyphs, their widths have a different scale.
        scale = _scale(resource) if font.sub_type == "Type3" else 0.001
        self._is_simple = not isinstance(font.encoding, str)
        self._codec = font.encoding if isinstance(font.encoding, str) else "latin-1"
        self._default = default * scale
        self._widths = {key: width * scale for key, width in widths.items()}
        mapped = {
            ord(key): str(value) for key, value in font.character_map.items() if isinstance(key, str) and len(key) == 1
        }
        if isinstance(font.encoding, str):
            self._texts = mapped
        else:
            encoded = {code: str(font.encoding.get(code, chr(code))) for code in range(256)}
            self._texts = {
                code: mapped.get(ord(text) if len(text) == 1 else -1, text) for code, text in encoded.items()
            }
            self._by_code = [self._widths.get(chr(code), self._default) for code in range(256)]

    def decode(self, data: bytes) -> tuple[str, float, int]:
        """Return the text of a string, its width in units of the font size, and the number of its codes."""
        if self._is_simple:
            return data.decode("latin-1").translate(self._texts), sum(map(self._by_code.__getitem__, data)), len(data)
        try:
            codes = data.decode(self._codec, "surrogatepass")
        except UnicodeDecodeError:
            codes = data.decode(self._codec, "replace")
        widths, default = self._widths, self._default
        return codes.translate(self._texts), sum([widths.get(code, default) for code in codes]), len(codes)


def _number(value: Any, default: float) -> float:
    value = value.get_object() if hasattr(value, "get_object") else value
    return float(value) if isinstance(value, (int, float)) else default


def _weight(font: Font) -> float:
    return _number(font.font_descriptor.weight, 0)


def _scale(resource: Any) -> float:
    matrix = resource.get("/FontMatrix")
    return abs(_number(matrix[0], 0.001)) if matrix is not None and len(matrix) == 6 else 0.001
