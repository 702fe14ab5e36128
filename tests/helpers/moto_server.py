"""moto's server without half of its work: logging and listing its own folder for each request.

python -P tests/helpers/moto_server.py -H 127.0.0.1 -p 5000
"""

import logging

from moto import backends
from moto.server import main

if __name__ == "__main__":
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    services = list(backends.list_of_moto_modules())
    backends.list_of_moto_modules = lambda: services
    main()
