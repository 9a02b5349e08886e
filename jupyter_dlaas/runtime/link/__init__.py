"""Link between processes of a job that share no file: lines, streams and whole files over one connection."""
