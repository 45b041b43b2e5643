"""rMuscle: FFN work is taken over from a reference, the output of visual tokens in prefill, neurons in denoising.

Zhou, Li, Chen, Gu: "rMuscle: Robotic Muscle Memory for Efficient Vision-Language-Action Model Inference",
arXiv 2609.19104.
"""
