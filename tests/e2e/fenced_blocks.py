"""The fenced code of a Markdown file, for tests that run what documents say."""

import dataclasses
import re


@dataclasses.dataclass
class Block:
    #: What stands behind the opening fence, such as "python" or "sh".
    info: str
    #: Of the opening fence, from 1.
    line: int
    text: str


def fenced_blocks(path):
    """Blocks in order; indented ones and inline code are none."""
    blocks, open_block = [], None
    with open(path) as file:
        for number, line in enumerate(file, 1):
            fence = re.fullmatch(r"```(.*)\n?", line)
            if fence and open_block is None:
                open_block = Block(fence[1].strip(), number, "")
            elif fence:
                blocks.append(open_block)
                open_block = None
            elif open_block is not None:
                open_block.text += line
    if open_block is not None:
        raise AssertionError(f"{path}:{open_block.line}: the fence is not closed")
    return blocks
