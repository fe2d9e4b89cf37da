"""`gemps train`: a server and its workers as processes of one machine, from the start to the finished run folder."""
