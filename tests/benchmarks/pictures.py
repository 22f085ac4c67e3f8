"""What the tests of the pictures read from an SVG."""

import xml.etree.ElementTree as ElementTree

SVG = "{http://www.w3.org/2000/svg}"
EM = 0.55  # mean width of a letter over the font size; DejaVu Sans, a wide font, needs 0.52 for these texts


def words(picture: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def dots(picture: str, colour: str) -> list[tuple[float, float]]:
    circles = ElementTree.fromstring(picture).iter(f"{SVG}circle")
    return [(float(one.attrib["cx"]), float(one.attrib["cy"])) for one in circles if one.attrib["fill"] == colour]


def outside(picture: str) -> list[str]:
    """Texts that exceed the picture when set in a wide font."""
    root = ElementTree.fromstring(picture)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    found = []
    for element in root.iter(f"{SVG}text"):
        x, y, size = (float(element.attrib[name]) for name in ("x", "y", "font-size"))
        length = EM * size * len(element.text or "")
        left = x - length * {"start": 0.0, "middle": 0.5, "end": 1.0}[element.attrib.get("text-anchor", "start")]
        if left < 0 or left + length > width or not size <= y <= height:
            found.append(element.text or "")
    return found
