//! vLLM
