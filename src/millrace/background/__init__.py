"""Processes that go on in the background, and the folders by which they are found again."""
