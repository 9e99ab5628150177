"""Images, labels and their order: folders, npz, CIFAR-10, Hugging Face datasets, the embedded fashion16."""
