"""The adaptive sampler of Kim et al. (2025): a policy network chooses a Beta density for every example.

sampler.py draws and learns; policy.py is the network, beta.py the densities, rewards.py what the policy
maximises, with the paper's reward in decrease.py and ours in alignment.py.
"""
