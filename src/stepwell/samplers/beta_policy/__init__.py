"""The paper's sampler (Kim et al. 2025): a policy proposes a Beta distribution over time for each image."""
