"""Where the figures of a training go beside its run folder: TensorBoard, W&B, MLflow, or what others bring."""
