"""What several test folders share: servers, child processes, a network that fails on command."""
