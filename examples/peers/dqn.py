"""Deep Q-learning: an agent learns the way along a corridor, with a target network that follows the trained one."""

import copy
import random

import torch
from torch import nn
from torch.nn import functional as F

LENGTH = 8
# Left and right.
ACTIONS = 2
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def act(place, action):
    """The place after an action, and the reward for it: 1 at the right end."""
    following = place + 1 if action == 1 else max(place - 1, 0)
    return (0, 1.0) if following == LENGTH - 1 else (following, 0.0)


def hot(places):
    return F.one_hot(torch.as_tensor(places, device=DEVICE), LENGTH).float()


def train(steps):
    """Values of the actions at each place, after so many steps."""
    random.seed(3)
    torch.manual_seed(3)
    online = nn.Sequential(nn.Linear(LENGTH, 32), nn.ReLU(), nn.Linear(32, ACTIONS)).to(DEVICE)
    target = copy.deepcopy(online)
    adam = torch.optim.Adam(online.parameters(), lr=5e-3)
    place, memory = 0, []
    for step in range(steps):
        # Chance decides with a falling probability.
        if random.random() < 1 - step / steps:
            action = random.randrange(ACTIONS)
        else:
            with torch.no_grad():
                action = online(hot([place])).argmax().item()
        following, reward = act(place, action)
        memory.append((place, action, reward, following, reward > 0))
        place = following
        if len(memory) < 64:
            continue
        batch = (torch.tensor(column, device=DEVICE) for column in zip(*random.choices(memory, k=32)))
        places, actions, rewards, followings, ends = batch
        with torch.no_grad():
            wanted = rewards + 0.9 * ~ends * target(hot(followings)).amax(1)
        values = online(hot(places)).gather(1, actions.unsqueeze(1)).squeeze(1)
        loss = F.smooth_l1_loss(values, wanted)
        adam.zero_grad()
        loss.backward()
        adam.step()
        with torch.no_grad():
            for ours, theirs in zip(target.parameters(), online.parameters()):
                ours.lerp_(theirs, 0.02)
    with torch.no_grad():
        return online(hot(range(LENGTH - 1))).tolist()


if __name__ == "__main__":
    for place, (left, right) in enumerate(train(1500)):
        print(f"place {place}: left {left:.2f}, right {right:.2f}")
