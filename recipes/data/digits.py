"""scikit-learn's handwritten digits as a DataModule: real data without a download.

1,797 grey images of 8 x 8 pixels. The split is stratified and seeded: 809 images are kept for the test, 149 choose
recipes and checkpoints, 839 train.
"""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

TEST_SHARE, VAL_SHARE = 0.45, 0.15  # of all images, and of all images without the test images


class Digits(Dataset[tuple[Tensor, int]]):
    """Images in memory, `(N, 1, 8, 8)` in [-1, 1], shifted at random by up to `shift` pixels in each direction."""

    def __init__(self, images: Tensor, labels: Tensor, shift: int = 0) -> None:
        self.images, self.labels, self.shift = images, labels, shift

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index]
        if self.shift:
            dy, dx = torch.randint(0, 2 * self.shift + 1, (2,)).tolist()
            padded = F.pad(image, (self.shift,) * 4, value=-1.0)
            image = padded[:, dy : dy + image.shape[1], dx : dx + image.shape[2]]
        return image, int(self.labels[index])


class DigitsData(pl.LightningDataModule):
    """Digits, split into train, validation and test.

    Args:
        batch_size: Samples per device.
        shift: Largest random shift of a training image, in pixels; 0, the default, turns shifts off.
        seed: Seed of the split.
    """

    def __init__(self, batch_size: int = 32, shift: int = 0, seed: int = 0) -> None:
        super().__init__()
        if not 0 <= shift < 8:
            raise ValueError(f"Expected shift to be 0-7 pixels of an 8 x 8 image, but got {shift}. 1 is usual.")
        self.batch_size, self.shift, self.seed = batch_size, shift, seed
        self.datasets: dict[str, Digits] = {}

    def setup(self, stage: str | None = None) -> None:
        """Make the three splits, the same for every stage."""
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        if self.datasets:
            return
        images, labels = load_digits(return_X_y=True)
        options = {"random_state": self.seed}
        rest_x, test_x, rest_y, test_y = train_test_split(
            images, labels, test_size=TEST_SHARE, stratify=labels, **options
        )
        train_x, val_x, train_y, val_y = train_test_split(
            rest_x, rest_y, test_size=VAL_SHARE, stratify=rest_y, **options
        )
        parts = {"train": (train_x, train_y), "val": (val_x, val_y), "test": (test_x, test_y)}
        for role, (x, y) in parts.items():
            tensor = torch.as_tensor(x, dtype=torch.float32).reshape(-1, 1, 8, 8) / 8 - 1
            self.datasets[role] = Digits(tensor, torch.as_tensor(y), self.shift if role == "train" else 0)

    def train_dataloader(self) -> DataLoader[tuple[Tensor, int]]:
        """Return a shuffled loader."""
        return DataLoader(self.datasets["train"], self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, int]]:
        """Return a loader in order."""
        return DataLoader(self.datasets["val"], batch_size=256)

    def test_dataloader(self) -> DataLoader[tuple[Tensor, int]]:
        """Return a loader in order."""
        return DataLoader(self.datasets["test"], batch_size=256)

    def predict_dataloader(self) -> DataLoader[tuple[Tensor, int]]:
        """Return the test images, in order."""
        return self.test_dataloader()
