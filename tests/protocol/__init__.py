"""The protocol, tested as a black box: raw stubs over a real channel, no SDK.

`contract` is the table of RPC x error reason; the other files are the rules of the Work stream, the
twins, the errors and the input that no decent client sends. `raw_worker`, `caller`, `refusals` and
`wire` are what they share.
"""
