"""What can be given to `pdvf.train(..., on_stage=[...])`: functions of one `Event`, these or your own.

Every run writes TensorBoard curves to RUN/tensorboard by itself.
"""

from pdvf.experiment.events import Event, Listener
from pdvf.experiment.scalars import TensorBoard, WandB

__all__ = ["Event", "Listener", "TensorBoard", "WandB"]
