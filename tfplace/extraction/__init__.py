"""Traces TensorFlow models into flat GraphDefs and extracts their structure."""
