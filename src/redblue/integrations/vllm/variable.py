"""The environment variable by which a user enables redblue in vLLM."""

VARIABLE = "REDBLUE_VLLM"
ADVICE = f"unset {VARIABLE} to use vLLM's own attention"  # the end of every refusal
