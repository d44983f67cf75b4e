"""The verification of protocols and handlers: ten steps over bytes, before anything is stored or run."""
