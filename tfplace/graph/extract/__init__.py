"""From TensorFlow models to flat GraphDefs. The only TensorFlow in `graph`."""
