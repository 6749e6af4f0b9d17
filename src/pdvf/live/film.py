"""A film of what a tab shows: MP4 where PyAV is installed, else a GIF."""

from __future__ import annotations

import importlib
import importlib.util
import io
from typing import Any

import numpy as np
from PIL import Image

SECONDS = 60
"""The longest film."""


class Film:
    """Pictures one after the other, encoded as they come."""

    def __init__(self, rate: int) -> None:
        self._rate, self._buffer, self._count = rate, io.BytesIO(), 0
        self._frames: list[Image.Image] = []
        self._stream: Any = None
        self.kind = "mp4" if importlib.util.find_spec("av") else "gif"
        if self.kind == "mp4":
            self._container = importlib.import_module("av").open(self._buffer, "w", format="mp4")

    @property
    def full(self) -> bool:
        """Whether it is as long as it may be."""
        return self._count >= SECONDS * self._rate

    def add(self, picture: np.ndarray) -> None:
        """One more picture [h, w, 3], of the size of the first; their last row and column go if they are odd."""
        high, wide = picture.shape[0] // 2 * 2, picture.shape[1] // 2 * 2
        picture = np.ascontiguousarray(picture[:high, :wide, :3])
        self._count += 1
        if self.kind == "gif":
            if self._count % 3 == 1:  # browsers show few GIFs faster than ten pictures a second
                self._frames.append(Image.fromarray(picture).quantize(128))
            return
        av = importlib.import_module("av")
        if self._stream is None:
            self._stream = self._container.add_stream("libx264", rate=self._rate)
            self._stream.width, self._stream.height, self._stream.pix_fmt = wide, high, "yuv420p"
        self._container.mux(self._stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))

    def finish(self) -> bytes:
        """The file; nothing where there were no pictures."""
        if self._count == 0:
            return b""
        if self.kind == "gif":
            first, *others = self._frames
            first.save(self._buffer, "GIF", save_all=True, append_images=others, duration=3000 / self._rate, loop=0)
        else:
            self._container.mux(self._stream.encode())
            self._container.close()
        return self._buffer.getvalue()
