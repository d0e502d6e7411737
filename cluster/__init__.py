"""Operations: servers, topology and the command line."""
