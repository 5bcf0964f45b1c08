"""A language model of gated recurrent units learns a text, letter by letter, and goes on with it."""

import torch
from torch import nn
from torch.nn import functional as F

TEXT = "the quick brown fox jumps over the lazy dog. pack my box with five dozen liquor jugs. "


class Model(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.letters = nn.Embedding(classes, 16)
        self.gru = nn.GRU(16, 64)
        self.head = nn.Linear(64, classes)

    def forward(self, letters, state=None):
        """Scores for the letter after each place of `[t, b]` letters, and the state behind the last one."""
        hidden, state = self.gru(self.letters(letters), state)
        return self.head(hidden), state


def train(steps):
    """Trains for `epochs` steps, and returns the last loss and what the model writes."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(7)
    vocabulary = sorted(set(TEXT))
    number = {letter: number for number, letter in enumerate(vocabulary)}
    tokens = torch.tensor([number[letter] for letter in TEXT * 20], device=device)
    model = Model(len(vocabulary)).to(device)
    adam = torch.optim.Adam(model.parameters(), lr=1e-2)
    last = float("inf")
    for step in range(steps):
        starts = torch.randint(len(tokens) - 32, (16,), device=device)
        windows = tokens[torch.arange(33, device=device).unsqueeze(1) + starts]
        scores, _ = model(windows[:-1])
        loss = F.cross_entropy(scores.flatten(0, 1), windows[1:].flatten())
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        if step + 1 == steps or step % 50 == 0:
            last = loss.item()
            print(f"step {step:4}  loss {last:.3f}")
    written = [number[letter] for letter in "the quick "]
    state, start = None, 0
    with torch.no_grad():
        for _ in range(40):
            letters = torch.tensor(written[start:], device=device).unsqueeze(1)
            scores, state = model(letters, state)
            start = len(written)
            written.append(scores[-1, 0].argmax().item())
    return last, "".join(vocabulary[token] for token in written)


if __name__ == "__main__":
    print(train(300)[1])
