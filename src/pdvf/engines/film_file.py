"""A film as one file: MP4 in H.264, which every browser plays, where PyAV is installed, else a GIF."""

from __future__ import annotations

import importlib
import importlib.util
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

GIF_RATE = 10
"""Browsers show few GIFs faster than about ten pictures a second: others are left out."""


class FilmFile:
    """Pictures one after the other, encoded as they come.

    Args:
        rate: pictures in a second.
        colours: of a GIF.
        options: of the H.264 encoder.
    """

    def __init__(self, rate: float, colours: int = 128, options: Mapping[str, str] | None = None) -> None:
        self._rate, self._colours, self._options = rate, colours, dict(options or {})
        self._every = max(1, round(rate / GIF_RATE))
        self._buffer, self.count = io.BytesIO(), 0
        self._frames: list[Image.Image] = []
        self._stream: Any = None
        self.kind = "mp4" if importlib.util.find_spec("av") else "gif"
        if self.kind == "mp4":
            self._container = importlib.import_module("av").open(self._buffer, "w", format="mp4")

    def add(self, picture: np.ndarray) -> None:
        """One more picture [h, w, 3], of the size of the first; their last row and column go if they are odd."""
        high, wide = picture.shape[0] // 2 * 2, picture.shape[1] // 2 * 2
        picture = np.ascontiguousarray(picture[:high, :wide, :3])
        self.count += 1
        if self.kind == "gif":
            if (self.count - 1) % self._every == 0:
                self._frames.append(Image.fromarray(picture).quantize(self._colours))
            return
        av = importlib.import_module("av")
        if self._stream is None:
            self._stream = self._container.add_stream("libx264", rate=round(self._rate), options=self._options)
            self._stream.width, self._stream.height, self._stream.pix_fmt = wide, high, "yuv420p"
        self._container.mux(self._stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))

    def finish(self) -> bytes:
        """The file; nothing where there were no pictures."""
        if self.count == 0:
            return b""
        if self.kind == "gif":
            first, *others = self._frames
            duration = 1000 * self._every / self._rate
            first.save(self._buffer, "GIF", save_all=True, append_images=others, duration=duration, loop=0)
        else:
            self._container.mux(self._stream.encode())
            self._container.close()
        return self._buffer.getvalue()
