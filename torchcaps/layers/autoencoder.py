"""Convolutional autoencoder with tied filters: the decoder uses the encoder's, transposed."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import conv2d, conv_transpose2d, dropout, leaky_relu

STRIDES = (1, 2)


class ConvAutoencoder(nn.Module):
    """Images [b c h w] -> feature maps [b k h' w'] -> pixel logits [b c h w] (Hauser 2019, section 4.1).

    Two convolutions with leaky ReLU. 9x9 filters at strides 1 and 2 turn 28x28 pixels into 6x6 places. Encoder and
    decoder share the filter tensors but not the biases; `biases=False` leaves the filters alone, all that the paper
    lists.

    Example:

        net = ConvAutoencoder((1, 28, 28), channels=16)
        list(net(torch.rand(4, 1, 28, 28)).shape)  # [4, 1, 28, 28]
    """

    def __init__(
        self,
        image: tuple[int, int, int],
        channels: int = 128,
        kernel: int = 9,
        leak: float = 0.2,
        dropped: float = 0.2,
        biases: bool = True,
    ) -> None:
        super().__init__()
        self.image, self.kernel, self.leak, self.dropped = tuple(image), kernel, leak, dropped
        c, *size = self.image
        middle = [n - kernel + 1 for n in size]
        if min(middle) < kernel:
            raise ValueError(
                f"ConvAutoencoder: two filters of {kernel}x{kernel} do not fit into {size[0]}x{size[1]}; use a "
                "smaller kernel"
            )
        self.grid = tuple((n - kernel) // STRIDES[1] + 1 for n in middle)
        # pixels that the second stride drops and its transpose has to add
        self.left_over = tuple((n - kernel) % STRIDES[1] for n in middle)
        self.first = nn.Parameter(torch.randn(channels, c, kernel, kernel) * (c * kernel**2) ** -0.5)
        self.second = nn.Parameter(
            torch.randn(channels, channels, kernel, kernel) * (2 / (channels * kernel**2)) ** 0.5
        )
        sizes = {"first_bias": channels, "second_bias": channels, "middle_bias": channels, "pixel_bias": c}
        for name, n in sizes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(n)) if biases else None)

    def encode(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k h2 w2"]:
        """Compute the feature maps of images."""
        if tuple(images.shape[1:]) != self.image:
            raise ValueError(
                f"ConvAutoencoder expects images [b, {', '.join(map(str, self.image))}], got {list(images.shape)}"
            )
        maps = leaky_relu(conv2d(images, self.first, self.first_bias, STRIDES[0]), self.leak)
        return leaky_relu(conv2d(maps, self.second, self.second_bias, STRIDES[1]), self.leak)

    def decode(self, maps: Float[Tensor, "b k h2 w2"]) -> Float[Tensor, "b c h w"]:
        """Compute pixel logits from feature maps."""
        maps = conv_transpose2d(maps, self.second, self.middle_bias, STRIDES[1], output_padding=self.left_over)
        return conv_transpose2d(leaky_relu(maps, self.leak), self.first, self.pixel_bias, STRIDES[0])

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """Compute pixel logits; in training with dropout on the feature maps."""
        return self.decode(dropout(self.encode(images), self.dropped, self.training))

    def extra_repr(self) -> str:
        sizes = f"{list(self.image)} -> {[self.second.shape[0], *self.grid]}"
        biases = "" if self.first_bias is not None else ", no biases"
        return f"{sizes}, kernel={self.kernel}, dropout={self.dropped:g}{biases}"
