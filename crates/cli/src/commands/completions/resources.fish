complete -c leasehold -n "__fish_leasehold_using_subcommand @COMMANDS@" -a "(leasehold complete-resources (commandline -ct) 2> /dev/null)"
