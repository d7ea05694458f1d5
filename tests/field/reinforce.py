"""REINFORCE with a baseline: rollouts without gradients in a toy environment, then one training pass over them.

By hand: `inference` around the policy's calls in the rollout, `forward`, `backward` and `optimizer` in the update.
There is no `data` (nothing is loaded) and no `loss` (it is an expression). The samples are the update's observations.
"""

import torch
from hand import HandTimes
from torch import nn
from torch.distributions import Categorical

ENVIRONMENTS, HORIZON, GAMMA = 256, 12, 0.97

hand = HandTimes()


class Corridors:
    """Many walkers at once: each sees a noisy picture of where its goal is, and is rewarded for being near it."""

    def __init__(self, count, length=32):
        self.count = count
        self.length = length

    def reset(self):
        self.position = torch.full((self.count,), self.length // 2)
        self.goal = torch.randint(self.length, (self.count,))
        return self._observe()

    def step(self, action):
        self.position = (self.position + action - 1).clamp(0, self.length - 1)
        return self._observe(), -(self.position - self.goal).abs() / self.length

    def _observe(self):
        places = torch.arange(self.length)
        walker = (places == self.position[:, None]).float()
        goal = (places == self.goal[:, None]).float()
        return torch.cat([walker, goal], dim=1) + 0.05 * torch.randn(self.count, 2 * self.length)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh())
        self.actor = nn.Linear(256, 3)
        self.critic = nn.Linear(256, 1)

    def forward(self, observations):
        features = self.trunk(observations)
        return self.actor(features), self.critic(features).squeeze(-1)


@torch.no_grad()
def rollout(policy, environment):
    observations, actions, rewards = [], [], []
    observation = environment.reset()
    for _ in range(HORIZON):
        with hand.time("inference"):
            logits, _ = policy(observation)
        action = Categorical(logits=logits).sample()
        observations.append(observation)
        actions.append(action)
        observation, reward = environment.step(action)
        rewards.append(reward)
    returns, running = [], torch.zeros(ENVIRONMENTS)
    for reward in reversed(rewards):
        running = reward + GAMMA * running
        returns.append(running)
    return torch.cat(observations), torch.cat(actions), torch.cat(returns[::-1])


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    environment = Corridors(ENVIRONMENTS)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    for iteration in range(70):
        observations, actions, returns = rollout(policy, environment)
        with hand.time("forward"):
            logits, values = policy(observations)
        advantages = returns - values.detach()
        distribution = Categorical(logits=logits)
        policy_loss = -(distribution.log_prob(actions) * advantages).mean()
        loss = policy_loss + 0.5 * (returns - values).pow(2).mean() - 0.01 * distribution.entropy().mean()
        optimizer.zero_grad()
        with hand.time("backward"):
            loss.backward()
        with hand.time("optimizer"):
            optimizer.step()
        hand.samples += len(observations)
        hand.steps += 1
        if iteration % 10 == 0:
            print(f"iteration {iteration}: return {returns[:ENVIRONMENTS].mean().item():.3f}")
    hand.save(loss.item(), policy)


if __name__ == "__main__":
    main()
